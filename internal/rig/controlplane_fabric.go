// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The addresses of Services; apiService is that of the API server.
const (
	serviceRange = "10.96.0.0/16"
	apiService   = "10.96.0.1"
	dnsService   = "10.96.0.10"
)

// Users of a rig that only its own programs are.
const (
	userKubelet    = "system:node:" // a node's name follows
	userProxy      = "system:kube-proxy"
	userFrontProxy = "front-proxy"
)

// moveToFabric makes the network of the fabric that of the control plane. The machine reaches the API server by a relay at the
// address that it has without.
func (r controlPlane) moveToFabric(ctx context.Context) error {
	if _, err := r.Fabric(ctx); err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", r.ports.apiServer)
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		return fmt.Errorf("relay the API server: %w", err)
	}
	r.api = &relay{listener: listener, conns: map[net.Conn]bool{}, dial: func() (net.Conn, error) {
		return r.dial(context.Background(), "tcp4", address)
	}}
	r.onStop(func(context.Context) error { return r.api.close() })
	go r.api.serve()
	return nil
}

// dial connects to a server of the control plane, wherever that is.
func (r controlPlane) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	var d net.Dialer
	if !r.options.Kubelets {
		return d.DialContext(ctx, network, address)
	}
	err = inNetworkOf(r.fabric.holder.Pid(), func() error {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// spawnInNetwork is spawn in the network of the control plane.
func (r controlPlane) spawnInNetwork(name string, cmd *exec.Cmd) (*process, error) {
	if !r.options.Kubelets {
		return r.spawn(name, cmd)
	}
	return r.spawnBy(name, cmd, func() error { return inNetworkOf(r.fabric.holder.Pid(), cmd.Start) })
}

// nodeFlags are the flags of the API server that depend on which nodes there are.
func (r controlPlane) nodeFlags() ([]string, error) {
	plugins := r.options.AdmissionPlugins
	if !r.options.Kubelets {
		return []string{
			"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--authorization-mode=RBAC",
			"--enable-admission-plugins=" + strings.Join(plugins, ","),
		}, nil
	}
	flags := []string{
		// Other than loopback, which Pods cannot reach. The network is the fabric's, so nothing else can either.
		"--bind-address=0.0.0.0", "--advertise-address=" + fabricGateway, "--endpoint-reconciler-type=lease",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=" + strings.Join(append([]string{"NodeRestriction"}, plugins...), ","),
		"--kubelet-certificate-authority=" + r.pki.path("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		// There is no kube-proxy beside the API server, so it goes to the Pods of a webhook and not to its Service.
		"--enable-aggregator-routing=true",
	}
	for user, names := range map[string][2]string{
		"kube-apiserver": {"--kubelet-client-certificate", "--kubelet-client-key"},
		userFrontProxy:   {"--proxy-client-cert-file", "--proxy-client-key-file"},
	} {
		cert, key, err := r.pki.user(user)
		if err != nil {
			return nil, err
		}
		for i, content := range [][]byte{cert, key} {
			path := filepath.Join(r.pki.dir, user+[2]string{".crt", ".key"}[i])
			if err := os.WriteFile(path, content, 0o600); err != nil {
				return nil, err
			}
			flags = append(flags, names[i]+"="+path)
		}
	}
	return flags, nil
}
