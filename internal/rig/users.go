// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

// Users of a rig. Config and Kubeconfig take any other name as well.
const (
	// UserAdmin is for people and for the code of tests.
	UserAdmin = "admin"
	// UserController is for virtloom's controller, which has the rights of package
	// refdaemon/config/rbac and no others.
	UserController = rbac.ControllerUser
)

// NodeUser is the user for virtloom's agent of a node, which has the rights of package
// refdaemon/config/rbac and no others.
func NodeUser(node string) string { return rbac.NodeUser(node) }

// Config returns the means to reach the API server as the given user, which may do everything unless
// it is one of virtloom's daemons, and by whose name the audit log attributes what it does. Requests are not limited. If there is no
// certificate to be had for the user, each request fails with the reason.
func (r *Rig) Config(user string) *rest.Config {
	config := &rest.Config{Host: r.server, QPS: -1, UserAgent: user}
	cert, key, err := r.pki.user(user)
	if err != nil {
		config.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, err }
		return config
	}
	config.TLSClientConfig = rest.TLSClientConfig{CAData: r.pki.pem, CertData: cert, KeyData: key}
	return config
}

// Kubeconfig returns the path of a kubeconfig file for the given user, made when it is first asked
// for. If that fails, the path returned does not exist and the reason goes to Options.Log.
func (r *Rig) Kubeconfig(user string) string {
	path := filepath.Join(r.dir, "kubeconfig", url.PathEscape(user))
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := r.writeKubeconfig(user, r.server, path); err != nil {
		r.logf("%v", err)
	}
	return path
}

// Kubectl is kubectl as the user UserAdmin. It is not one of the rig's programs.
func (r *Rig) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(r.bin, "kubectl"), append([]string{"--kubeconfig", r.Kubeconfig(UserAdmin)}, args...)...)
}

func (r *Rig) writeKubeconfig(user, server, path string) error {
	cert, key, err := r.pki.user(user)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	const entry = "rig"
	config := clientcmdapi.NewConfig()
	config.Clusters[entry] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: r.pki.pem}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[entry] = &clientcmdapi.Context{Cluster: entry, AuthInfo: user}
	config.CurrentContext = entry
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("kubeconfig of user %q: %w", user, err)
	}
	return nil
}
