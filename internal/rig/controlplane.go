// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	_ "embed"
)

const (
	// portAttempts is how often a server is tried on new ports when another program was quicker to
	// take the one that was free.
	portAttempts = 3
	// parallelRequests is how many requests of one kind the rig itself has under way.
	parallelRequests = 8
	// probeTimeout bounds one look at a server that is about to become ready.
	probeTimeout = 2 * time.Second
)

// controllers of kube-controller-manager that a virtual machine's Pods, volumes, namespaces and
// budgets depend on. Without the node lifecycle controller no new node would lose its taint.
var controllers = []string{
	"disruption-controller",
	"garbage-collector-controller",
	"namespace-controller",
	"node-lifecycle-controller",
	"persistentvolume-binder-controller",
	"pod-garbage-collector-controller",
	"resourcequota-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
}

//go:embed audit.yaml
var auditPolicy []byte

// server is a program that listens on loopback.
type server struct {
	name  string
	ports int                              // how many it needs
	args  func(port []string) []string     // its arguments, given free ports
	ready func(port []string) (url string) // answers 200 when it is ready
}

// serve starts a server and waits until it is ready. It returns the ports it listens on.
func (r *Rig) serve(ctx context.Context, s server) ([]string, error) {
	for attempt := 1; ; attempt++ {
		port, err := freePorts(s.ports)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", s.name, err)
		}
		p, err := r.spawn(s.name, exec.Command(filepath.Join(r.bin, s.name), s.args(port)...))
		if err != nil {
			return nil, err
		}
		client, err := r.probeClient()
		if err != nil {
			return nil, err
		}
		err = p.waitReady(ctx, func(ctx context.Context) error { return probe(ctx, client, s.ready(port)) })
		client.CloseIdleConnections()
		if err == nil {
			r.logf("%s is ready", s.name)
			return port, nil
		}
		if attempt == portAttempts || !strings.Contains(err.Error(), "address already in use") {
			return nil, err
		}
	}
}

// startEtcd returns the URL for clients.
func (r *Rig) startEtcd(ctx context.Context) (string, error) {
	port, err := r.serve(ctx, server{
		name:  "etcd",
		ports: 2,
		args: func(port []string) []string {
			client, peer := "http://127.0.0.1:"+port[0], "http://127.0.0.1:"+port[1]
			return []string{
				"--name=rig", "--data-dir=" + filepath.Join(r.dataDir, "etcd"), "--unsafe-no-fsync",
				"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
				"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
				"--initial-cluster=rig=" + peer,
				"--quota-backend-bytes=8589934592", "--snapshot-count=50000",
				"--auto-compaction-mode=periodic", "--auto-compaction-retention=5m", "--log-level=warn",
			}
		},
		ready: func(port []string) string { return "http://127.0.0.1:" + port[0] + "/health" },
	})
	if err != nil {
		return "", err
	}
	return "http://127.0.0.1:" + port[0], nil
}

func (r *Rig) startAPIServer(ctx context.Context, etcd string) error {
	policy := filepath.Join(r.dir, "etc", "audit.yaml")
	if err := os.WriteFile(policy, auditPolicy, 0o644); err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	authority := r.pki.path("ca.crt")
	port, err := r.serve(ctx, server{
		name:  "kube-apiserver",
		ports: 1,
		args: func(port []string) []string {
			return append(r.servingFlags(port[0]),
				"--etcd-servers="+etcd, "--advertise-address=127.0.0.1",
				"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
				"--client-ca-file="+authority, "--authorization-mode=RBAC", "--allow-privileged=true",
				// Names nobody has: the kubelet-like components do not go through a proxy, but they
				// log an error every minute while there is no authority for one.
				"--requestheader-client-ca-file="+authority, "--requestheader-allowed-names=front-proxy",
				"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
				"--requestheader-extra-headers-prefix=X-Remote-Extra-",
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-key-file="+r.pki.path("sa.pub"),
				"--service-account-signing-key-file="+r.pki.path("sa.key"),
				"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000",
				"--event-ttl=10m", "--profiling=true",
				// Blocking, so that an answered request is in the log.
				"--audit-policy-file="+policy, "--audit-log-path="+r.AuditLog(),
				"--audit-log-mode=blocking", "--audit-log-maxsize=2000",
			)
		},
		ready: func(port []string) string { return "https://127.0.0.1:" + port[0] + "/readyz" },
	})
	if err != nil {
		return err
	}
	r.server = "https://127.0.0.1:" + port[0]
	return nil
}

func (r *Rig) startControllers(ctx context.Context) error {
	config := r.Kubeconfig("system:kube-controller-manager")
	_, err := r.serve(ctx, server{
		name:  "kube-controller-manager",
		ports: 1,
		args: func(port []string) []string {
			return append(r.servingFlags(port[0]),
				"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
				"--leader-elect=false", "--use-service-account-credentials=false",
				"--service-account-private-key-file="+r.pki.path("sa.key"), "--root-ca-file="+r.pki.path("ca.crt"),
				"--controllers="+strings.Join(controllers, ","),
				"--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-gc-syncs=20", "--node-monitor-period=1s",
			)
		},
		ready: func(port []string) string { return "https://127.0.0.1:" + port[0] + "/healthz" },
	})
	return err
}

func (r *Rig) startScheduler(ctx context.Context) error {
	user := r.Kubeconfig("system:kube-scheduler")
	config := filepath.Join(r.dir, "etc", "scheduler.yaml")
	text := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 1000, burst: 2000}
`, user)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return fmt.Errorf("start kube-scheduler: %w", err)
	}
	_, err := r.serve(ctx, server{
		name:  "kube-scheduler",
		ports: 1,
		args: func(port []string) []string {
			return append(r.servingFlags(port[0]),
				"--config="+config, "--authentication-kubeconfig="+user, "--authorization-kubeconfig="+user)
		},
		ready: func(port []string) string { return "https://127.0.0.1:" + port[0] + "/readyz" },
	})
	return err
}

// servingFlags are those that all servers of Kubernetes have in common.
func (r *Rig) servingFlags(port string) []string {
	return []string{
		"--bind-address=127.0.0.1", "--secure-port=" + port,
		"--tls-cert-file=" + r.pki.path("server.crt"), "--tls-private-key-file=" + r.pki.path("server.key"),
	}
}

// probeClient trusts the servers of this rig and no others.
func (r *Rig) probeClient() (*http.Client, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(r.pki.pem) {
		return nil, errors.New("the rig's own authority is not valid")
	}
	return &http.Client{
		Timeout:   probeTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
	}, nil
}

// probe asks for url and expects 200.
func probe(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	const most = 4 << 10
	body, err := io.ReadAll(io.LimitReader(response.Body, most))
	return errors.Join(fmt.Errorf("%s: %s: %s", url, response.Status, body), err)
}

// freePorts finds ports of loopback that nobody listens on. They may be taken before they are used,
// see portAttempts.
func freePorts(n int) ([]string, error) {
	ports := make([]string, 0, n)
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer listener.Close()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		ports = append(ports, port)
	}
	return ports, nil
}
