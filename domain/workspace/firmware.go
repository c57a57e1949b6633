// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/convert"
)

// defaultFirmwareDirs are the directories of UEFI images in distributions: KubeVirt's launcher and
// Fedora, Debian and Ubuntu, both for arm64 too.
var defaultFirmwareDirs = []string{"/usr/share/edk2/ovmf", "/usr/share/OVMF", "/usr/share/edk2/aarch64", "/usr/share/AAVMF"}

// firmwareFiles are the names of images, the best first. One without variables has an empty second
// name.
type firmwareFiles [][2]string

// firmwareNames are the names of each image, by the architecture of the host. An image that
// supports secure boot, with variables that enroll no keys, verifies nothing; but it needs system
// management mode, so that one without comes first.
var firmwareNames = map[string]struct{ secureBoot, plain, sev, snp, tdx, tdxSecureBoot firmwareFiles }{
	"x86_64": {
		secureBoot: firmwareFiles{
			{"OVMF_CODE.secboot.fd", "OVMF_VARS.secboot.fd"},
			{"OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.ms.fd"}, {"OVMF_CODE_4M.ms.fd", "OVMF_VARS_4M.ms.fd"},
		},
		plain: firmwareFiles{
			{"OVMF_CODE.fd", "OVMF_VARS.fd"}, {"OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"},
			{"OVMF_CODE.secboot.fd", "OVMF_VARS.fd"},
		},
		sev:           firmwareFiles{{"OVMF_CODE.cc.fd", "OVMF_VARS.fd"}},
		snp:           firmwareFiles{{"OVMF.amdsev.fd", ""}},
		tdx:           firmwareFiles{{"OVMF.inteltdx.fd", ""}},
		tdxSecureBoot: firmwareFiles{{"OVMF.inteltdx.secboot.fd", ""}},
	},
	"aarch64": {
		secureBoot: firmwareFiles{{"AAVMF_CODE.ms.fd", "AAVMF_VARS.ms.fd"}},
		plain: firmwareFiles{
			{"AAVMF_CODE.fd", "AAVMF_VARS.fd"}, {"AAVMF_CODE.no-secboot.fd", "AAVMF_VARS.fd"},
			{"QEMU_EFI-silent-pflash.raw", "vars-template-pflash.raw"}, {"QEMU_EFI-pflash.raw", "vars-template-pflash.raw"},
		},
	},
}

// findFirmware looks for the UEFI images of an architecture. Directories come before
// names: code and variables are of one build. regular reports whether there is a regular file.
func findFirmware(arch string, dirs []string, regular func(path string) bool) convert.Firmware {
	names := firmwareNames[arch]
	find := func(files firmwareFiles) convert.FirmwareImage {
		for _, dir := range dirs {
			for _, f := range files {
				code, vars := filepath.Join(dir, f[0]), filepath.Join(dir, f[1])
				switch {
				case !regular(code), f[1] != "" && !regular(vars):
				case f[1] == "":
					return convert.FirmwareImage{Code: code}
				default:
					return convert.FirmwareImage{Code: code, Vars: vars}
				}
			}
		}
		return convert.FirmwareImage{}
	}
	return convert.Firmware{
		SecureBoot: find(names.secureBoot), Plain: find(names.plain), SEV: find(names.sev), SNP: find(names.snp),
		TDX: find(names.tdx), TDXSecureBoot: find(names.tdxSecureBoot),
	}
}

// onNode reports whether the node has a regular file, following the links of distributions.
func onNode(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// inImage does the same in a launcher's image, by its root.
func inImage(root *os.File) func(path string) bool {
	return func(path string) bool {
		fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
	}
}
