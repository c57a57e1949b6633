// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	virt "libvirt.org/go/libvirt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
)

func TestParseAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		answer string
		want   guestagent.Info
		fails  bool
	}{
		"enabled commands, sorted": {
			answer: `{"return":{"version":"7.2.22","supported_commands":[
				{"name":"guest-ping","enabled":true},{"name":"guest-exec","enabled":false},{"name":"guest-info","enabled":true}]}}`,
			want: guestagent.Info{AgentVersion: "7.2.22", Commands: []string{"guest-info", "guest-ping"}},
		},
		"nothing": {answer: `{"return":{}}`},
		"no JSON": {answer: `agent?`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseAgent(tc.answer)
			if (err != nil) != tc.fails {
				t.Fatalf("error is %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("info (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseFrozen(t *testing.T) {
	for name, tc := range map[string]struct {
		answer      string
		want, fails bool
	}{
		"frozen":  {answer: `{"return":"frozen"}`, want: true},
		"thawed":  {answer: `{"return":"thawed"}`},
		"no JSON": {answer: `frozen`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseFrozen(tc.answer)
			if got != tc.want || (err != nil) != tc.fails {
				t.Errorf("frozen is %t, %v", got, err)
			}
		})
	}
}

func TestCommandName(t *testing.T) {
	for name, tc := range map[string]struct{ command, want string }{
		"with arguments":    {`{"execute":"guest-exec","arguments":{"path":"/bin/true"}}`, "guest-exec"},
		"ours":              {plain(guestInfo), guestInfo},
		"no command":        {`{"arguments":{}}`, ""},
		"no object":         {`"guest-ping"`, ""},
		"two in one string": {plain(guestInfo) + plain(freezeStatus), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := commandName(tc.command)
			if got != tc.want || (tc.want == "") != errors.Is(err, domain.ErrInvalid) {
				t.Errorf("command is %q, %v", got, err)
			}
		})
	}
}

func TestDescribeGuest(t *testing.T) {
	in := &virt.DomainGuestInfo{
		Hostname: "guest", TimeZone: &virt.DomainGuestInfoTimeZone{NameSet: true, Name: "CET", Offset: 3600},
		OS:    &virt.DomainGuestInfoOS{Name: "Fedora", ID: "fedora", VersionID: "40"},
		Users: []virt.DomainGuestInfoUser{{Name: "root", LoginTime: 1700000000123}},
		FileSystems: []virt.DomainGuestInfoFileSystem{{
			Name: "vda1", MountPoint: "/", FSType: "ext4", UsedBytes: 1, TotalBytes: 2,
			Disks: []virt.DomainGuestInfoFileSystemDisk{{AliasSet: true, Alias: "vda"}, {Device: "/dev/loop0"}},
		}},
		Interfaces: []virt.DomainGuestInfoInterface{{
			Name: "eth0", Hwaddr: "02:00:00:00:00:01",
			Addrs: []virt.DomainGuestInfoIPAddress{{Addr: "192.0.2.7", Prefix: 24}, {Addr: "2001:db8::7", Prefix: 64}},
		}},
	}
	want := guestagent.Info{
		Hostname: "guest", Timezone: "CET, 3600", OS: guestagent.OS{Name: "Fedora", ID: "fedora", VersionID: "40"},
		Users:       []guestagent.User{{Name: "root", LoginTime: time.UnixMilli(1700000000123).UTC()}},
		Filesystems: []guestagent.Filesystem{{Name: "vda1", Mountpoint: "/", Type: "ext4", UsedBytes: 1, TotalBytes: 2, Disks: []string{"vda"}}},
		Interfaces:  []guestagent.Interface{{Name: "eth0", MAC: "02:00:00:00:00:01", IPs: []string{"192.0.2.7", "2001:db8::7"}}},
	}
	var got guestagent.Info
	describeGuest(&got, in)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
	var empty guestagent.Info
	describeGuest(&empty, &virt.DomainGuestInfo{})
	if diff := cmp.Diff(guestagent.Info{}, empty); diff != "" {
		t.Errorf("an agent that knows nothing (-want +got):\n%s", diff)
	}
}

func TestAgentErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want error
	}{
		"nobody answers":      {virt.Error{Code: virt.ERR_AGENT_UNRESPONSIVE}, domain.ErrNoAgent},
		"out of step":         {virt.Error{Code: virt.ERR_AGENT_UNSYNCED}, domain.ErrNoAgent},
		"too slow":            {virt.Error{Code: virt.ERR_AGENT_COMMAND_TIMEOUT}, domain.ErrNoAgent},
		"no channel":          {virt.Error{Code: virt.ERR_ARGUMENT_UNSUPPORTED}, domain.ErrNoAgent},
		"hypervisor has none": {virt.Error{Code: virt.ERR_NO_SUPPORT}, domain.ErrUnsupported},
		"no such domain":      {virt.Error{Code: virt.ERR_NO_DOMAIN}, domain.ErrNotFound},
		"not running":         {virt.Error{Code: virt.ERR_OPERATION_INVALID}, domain.ErrInvalidState},
	} {
		t.Run(name, func(t *testing.T) {
			if err := translate("ask", "guest", agentError(tc.err)); !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
		})
	}
	if err := agentError(fmt.Errorf("else")); errors.Is(err, domain.ErrNoAgent) {
		t.Errorf("error is %v", err)
	}
}
