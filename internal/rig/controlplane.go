// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "embed"

	"k8s.io/apimachinery/pkg/util/wait"
)

// parallelRequests is how many requests of one kind the rig itself has under way.
const parallelRequests = 8

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

// roles is the check of the API server's readiness for the roles of RBAC.
const roles = "poststarthook/rbac/bootstrap-roles"

//go:embed audit.yaml
var auditPolicy []byte

//go:embed audit_lean.yaml
var leanAuditPolicy []byte

// ports of loopback that the servers of a rig listen on.
type ports struct {
	etcd, etcdPeer, apiServer, controllers, scheduler, kwok string
}

func newPorts() (ports, error) {
	const servers = 6
	free, err := FreePorts(servers)
	if err != nil {
		return ports{}, err
	}
	return ports{free[0], free[1], free[2], free[3], free[4], free[5]}, nil
}

func (r controlPlane) startEtcd(ctx context.Context) error {
	client, peer := "http://127.0.0.1:"+r.ports.etcd, "http://127.0.0.1:"+r.ports.etcdPeer
	return r.serve(ctx, server{
		name: "etcd",
		args: []string{
			"--name=rig", "--data-dir=" + filepath.Join(r.dataDir, "etcd"), "--unsafe-no-fsync",
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=rig=" + peer,
			"--quota-backend-bytes=8589934592", "--snapshot-count=50000",
			"--auto-compaction-mode=periodic", "--auto-compaction-retention=5m", "--log-level=warn",
		},
		ready: client + "/health",
	})
}

// startAPIServer may be called before etcd is ready: the API server waits for it.
func (r controlPlane) startAPIServer(ctx context.Context) error {
	policy := filepath.Join(r.dir, "etc", "audit.yaml")
	text := auditPolicy
	if r.options.LeanAudit {
		text = leanAuditPolicy
	}
	if err := os.WriteFile(policy, text, 0o644); err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	authority := r.pki.path("ca.crt")
	args := append(r.servingFlags(r.ports.apiServer),
		"--etcd-servers=http://127.0.0.1:"+r.ports.etcd, "--service-cluster-ip-range="+serviceRange,
		"--client-ca-file="+authority, "--allow-privileged=true",
		// Without an authority for clients that come through a proxy the other servers complain every minute.
		"--requestheader-client-ca-file="+authority, "--requestheader-allowed-names="+userFrontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+r.pki.path("sa.pub"),
		"--service-account-signing-key-file="+r.pki.path("sa.key"),
		"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000",
		"--event-ttl=10m", "--profiling=true",
		// Blocking, so that the log has every request that was answered.
		"--audit-policy-file="+policy, "--audit-log-path="+r.auditLog(),
		"--audit-log-mode=blocking", "--audit-log-maxsize=2000",
	)
	more, err := r.nodeFlags()
	if err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	return r.serve(ctx, server{
		name: "kube-apiserver",
		args: append(args, more...),
		// The roles of RBAC come last, and most users of a rig do without: see waitRoles.
		ready: r.server + "/readyz?exclude=" + roles,
	})
}

// waitRoles waits for the rest of what startAPIServer did not wait for. kube-controller-manager
// does so for ten seconds by itself and then ends, which on a busy machine is too soon.
func (r controlPlane) waitRoles(ctx context.Context) error {
	client, err := r.probeClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	err = wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		return probe(ctx, client, r.server+"/readyz") == nil, nil
	})
	if err != nil {
		return fmt.Errorf("roles of RBAC: %w", err)
	}
	return nil
}

// startControllers waits for the roles first: kube-controller-manager gives up if the API server is not healthy, which
// includes the roles, within ten seconds, and a busy machine takes longer to write them.
func (r controlPlane) startControllers(ctx context.Context) error {
	if err := r.waitRoles(ctx); err != nil {
		return err
	}
	config := r.Kubeconfig("system:kube-controller-manager")
	return r.serve(ctx, server{
		name: "kube-controller-manager",
		args: append(r.servingFlags(r.ports.controllers),
			"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
			"--leader-elect=false", "--use-service-account-credentials=false",
			"--service-account-private-key-file="+r.pki.path("sa.key"), "--root-ca-file="+r.pki.path("ca.crt"),
			"--controllers="+strings.Join(r.controllers(), ","),
			"--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-gc-syncs=20", "--node-monitor-period=1s",
			// A claim that is looked at before its volume is known waits for this.
			"--pvclaimbinder-sync-period=1s",
		),
		ready: "https://127.0.0.1:" + r.ports.controllers + "/healthz",
	})
}

// controllers are those that run. With real nodes they are what a cluster has.
func (r controlPlane) controllers() []string {
	if r.options.Kubelets {
		return append([]string{"*"}, r.options.Controllers...)
	}
	return slices.Concat(controllers, r.options.Controllers)
}

func (r controlPlane) startScheduler(ctx context.Context) error {
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
	return r.serve(ctx, server{
		name: "kube-scheduler",
		args: append(r.servingFlags(r.ports.scheduler),
			"--config="+config, "--authentication-kubeconfig="+user, "--authorization-kubeconfig="+user),
		ready: "https://127.0.0.1:" + r.ports.scheduler + "/readyz",
	})
}

// servingFlags are those that all servers of Kubernetes have in common.
func (r controlPlane) servingFlags(port string) []string {
	return []string{
		"--bind-address=127.0.0.1", "--secure-port=" + port,
		"--tls-cert-file=" + r.pki.path("server.crt"), "--tls-private-key-file=" + r.pki.path("server.key"),
	}
}
