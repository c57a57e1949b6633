// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// podPrefix begins the addresses of Pods; the number of a node follows.
const (
	podPrefix  = "10.244."
	allPods    = podPrefix + "0.0/16"
	pauseImage = "localhost/virtloom-pause:dev"
)

// writeFiles makes what the node finds when it starts.
func (n *KubeletNode) writeFiles() error {
	for _, folder := range kubeletFolders {
		if err := os.MkdirAll(n.file(folder), 0o755); err != nil {
			return err
		}
	}
	r := n.fabric.rig
	cert, key, err := r.pki.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: userKubelet + n.name},
		DNSNames:    []string{n.name},
		IPAddresses: []net.IP{net.ParseIP(n.address)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	server := "https://" + net.JoinHostPort(fabricGateway, r.ports.apiServer)
	for user, file := range map[string]string{userKubelet + n.name: "kubelet", userProxy: "proxy"} {
		if err := r.writeKubeconfig(user, server, n.file("etc/"+file+".kubeconfig")); err != nil {
			return err
		}
	}
	for path, content := range map[string]string{
		"kubelet.sh":            kubeletScript,
		"kubelet_program.sh":    kubeletProgramScript,
		"kubelet_loops.sh":      kubeletLoopsScript,
		"etc/kubelet.crt":       string(cert),
		"etc/kubelet.key":       string(key),
		"etc/ca.crt":            string(r.pki.pem),
		"etc/kubelet.yaml":      n.kubeletConfig(),
		"etc/proxy.yaml":        n.proxyConfig(),
		"etc/containerd.toml":   containerdConfig(),
		"net.d/10-pod.conflist": n.networkConfig(),
	} {
		if err := os.WriteFile(n.file(path), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return WriteImage(n.file("pause.tar"), Image{
		Name: pauseImage, Entrypoint: []string{"/pause"}, Files: map[string]string{"/pause": filepath.Join(r.bin, "pause")},
	})
}

// kubeletConfig leaves to the kubelet what a distribution does, except that it takes version 1 of control groups, does not judge
// the disk of the machine, which it shares with others, and never deletes an image, as there is nowhere to get it from again.
func (n *KubeletNode) kubeletConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
tlsCertFile: %[2]s/etc/kubelet.crt
tlsPrivateKeyFile: %[2]s/etc/kubelet.key
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[2]s/etc/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: /etc/resolv.conf
clusterDNS: [%[3]s]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://%[4]s
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
serializeImagePulls: false
`, n.address, n.dir, dnsService, containerdSocket)
}

// proxyConfig leaves the limits of connection tracking alone: they are the machine's.
func (n *KubeletNode) proxyConfig() string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s/etc/proxy.kubeconfig}
hostnameOverride: %s
clusterCIDR: %s
detectLocalMode: ClusterCIDR
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, n.dir, n.name, allPods)
}

// networkConfig connects each Pod by a cable to the node, which routes. With a bridge instead, an answer from a Pod to another one
// of the same node would not come past what kube-proxy has made of a Service, unless the machine has br_netfilter loaded.
func (n *KubeletNode) networkConfig() string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {
    "type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`, n.podRange())
}

// containerdConfig is for a machine where processes may not lower their score of being killed for memory, or where AppArmor is
// of no use in a container.
func containerdConfig() string {
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = "/etc/cni/net.d"
`, containerdSocket, pauseImage, cniFolder())
}
