// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/virtloom/virtloom/refdaemon/config/crd"
)

const (
	// startTimeout bounds Start on a machine that is busy with something else; a quiet one with two
	// cores needs a few seconds.
	startTimeout = 3 * time.Minute
	// stopTimeout bounds the clean-up after a start that failed.
	stopTimeout = 30 * time.Second
	// startAttempts is how often a rig is started anew because it lost a port to another program.
	startAttempts = 3
)

// memoryDir holds the data of etcd where it exists, so that no disk has to keep up.
const memoryDir = "/dev/shm"

// Start starts a rig and returns when its API server serves KubeVirt's objects (unless it is bare), the namespace
// default has its service account, and the simulated nodes take Pods. Programs that are missing are
// ErrNoPrograms. A start that fails leaves nothing behind but its logs, in the folder the error
// names; one that ctx ends leaves nothing.
//
// The rig outlives ctx: it runs until Stop, or until this process ends.
func Start(ctx context.Context, o Options) (*Rig, error) {
	bin, err := FindPrograms()
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		r, err := prepare(o, bin)
		if err != nil {
			return nil, fmt.Errorf("start a rig: %w", err)
		}
		err = controlPlane{r}.start(ctx)
		if err == nil {
			return r, nil
		}
		again := lostPort(err) && attempt < startAttempts && ctx.Err() == nil
		kept := ""
		if ctx.Err() == nil && !again {
			r.Keep()
			kept = ", logs are in " + r.logDir()
		}
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		stopErr := r.Stop(stopCtx)
		cancel()
		if !again || stopErr != nil {
			return nil, errors.Join(fmt.Errorf("start a rig%s: %w", kept, err), stopErr)
		}
	}
}

// prepare makes the folders, the certificates and the watchdog.
func prepare(o Options, bin string) (r *Rig, err error) {
	if err := reap(filepath.Join(bin, journals)); err != nil {
		return nil, err
	}
	r = &Rig{options: o, bin: bin, keep: o.KeepLogs}
	if r.dir, err = os.MkdirTemp(o.Dir, "virtloom-rig-"); err != nil {
		return nil, err
	}
	r.dataDir = filepath.Join(dataParent(r.dir), filepath.Base(r.dir)+"-etcd")
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(r.dir), os.RemoveAll(r.dataDir))
		}
	}()
	if r.watchdog, err = startWatchdog(r.dir, filepath.Join(bin, journals)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.watchdog.close(false))
		}
	}()
	for _, dir := range []string{r.dir, r.dataDir} {
		if err = r.watchdog.AddDir(dir); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{r.dataDir, r.logDir(), filepath.Join(r.dir, "kubeconfig"), filepath.Join(r.dir, "etc")} {
		if err = os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if r.pki, err = newAuthority(filepath.Join(r.dir, "pki"), time.Now()); err != nil {
		return nil, err
	}
	if r.ports, err = newPorts(); err != nil {
		return nil, err
	}
	r.server = "https://127.0.0.1:" + r.ports.apiServer
	return r, nil
}

// dataParent is memoryDir if the data of etcd can live there, else the rig's own folder.
func dataParent(dir string) string {
	probe, err := os.MkdirTemp(memoryDir, "virtloom-probe-")
	if err != nil {
		return dir
	}
	if err := os.Remove(probe); err != nil {
		return dir
	}
	return memoryDir
}

// controlPlane starts the programs of a rig.
type controlPlane struct{ *Rig }

// start brings up the control plane, each part as soon as what it needs is there.
func (r controlPlane) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not there after %v", startTimeout))
	defer cancel()
	if r.options.Kubelets {
		if err := r.moveToFabric(ctx); err != nil {
			return err
		}
	}
	var definitions []*apiextensionsv1.CustomResourceDefinition
	err := together(ctx,
		r.startEtcd,
		r.startAPIServer,
		func(context.Context) (err error) {
			if !r.options.Bare {
				definitions, err = crd.Definitions()
			}
			definitions = append(definitions, r.options.Definitions...)
			return err
		},
		func(context.Context) error {
			for _, user := range []string{UserAdmin, UserController} {
				r.Kubeconfig(user)
			}
			return nil
		},
	)
	if err != nil {
		return err
	}
	err = together(ctx,
		r.startScheduler,
		r.startKwok,
		func(ctx context.Context) error {
			// The garbage collector looks for kinds when it starts, and then every 30 seconds. An owner of a
			// kind that it does not know it asks for, again and again.
			if err := r.installDefinitions(ctx, definitions); err != nil {
				return err
			}
			return r.startControllers(ctx)
		},
		r.installPermissions,
	)
	if err != nil {
		return err
	}
	return together(ctx, r.waitServiceAccount, r.addSimulatedNodes)
}

// together runs parts at the same time and returns the error of the first that fails.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	return group.Wait()
}

// waitServiceAccount waits for what no Pod can be created without.
func (r controlPlane) waitServiceAccount(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(r.Config(UserAdmin))
	if err != nil {
		return err
	}
	err = wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("service account default/default: %w", err)
	}
	return nil
}

func (r controlPlane) addSimulatedNodes(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelRequests)
	for i := range r.options.SimulatedNodes {
		spec := r.options.SimulatedNode
		spec.Name = fmt.Sprintf("sim-%d", i)
		group.Go(func() error { return r.addNode(ctx, spec) })
	}
	return group.Wait()
}
