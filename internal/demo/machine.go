// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// machine has the acts about the VM.
type machine struct{ *story }

// patch changes the VM with kubectl: its spec, or its status, which is where a restart is requested.
func (s machine) patch(ctx context.Context, change string, more ...string) error {
	s.log.report("VM/"+guestKey.Name, "kubectl patch", change)
	_, err := s.kubectl(ctx, nil, append([]string{"patch", "-n", guestKey.Namespace, "vm/" + guestKey.Name, "--type=merge", "-p", change}, more...)...)
	return err
}

// restart requests what "virtctl restart" does.
func (s machine) restart(ctx context.Context) error {
	last, requested := s.guest.UID, time.Now()
	change := fmt.Sprintf(`{"status":{"stateChangeRequests":[{"action":"Stop","uid":%q},{"action":"Start"}]}}`, last)
	if err := s.patch(ctx, change, "--subresource=status"); err != nil {
		return err
	}
	up, err := s.boots(ctx, last)
	if err != nil {
		return err
	}
	s.log.measure("the guest was up again %.1f s after its restart was requested", up.Sub(requested).Seconds())
	return s.single(ctx, "after the restart")
}

// update gives the VM another CPU, which its guest gets while it runs, in another Pod.
func (s machine) update(ctx context.Context) error {
	guest, to := s.guest.UID, s.other()
	if err := s.patch(ctx, `{"spec":{"template":{"spec":{"domain":{"cpu":{"sockets":2}}}}}}`); err != nil {
		return err
	}
	err := refcluster.Await(ctx, patience, "the guest to have two CPUs", func(ctx context.Context) error {
		vmi, err := s.vmi(ctx)
		if err != nil {
			return err
		}
		if vmi.UID != guest || vmi.Status.NodeName != to || len(vmi.Status.Interfaces) == 0 {
			return fmt.Errorf("it is on %q", vmi.Status.NodeName)
		}
		return s.ask(ctx, vmi.Status.Interfaces[0].IP, "cpus=2 ")
	})
	if err := s.log.promise(err == nil, "the running guest got a second CPU, and says so%s", because(err)); err != nil {
		return err
	}
	if err := errors.Join(s.running(ctx, to), s.settled(ctx)); err != nil {
		return err
	}
	return s.single(ctx, "after the update")
}

// settled waits until every migration has ended.
func (s machine) settled(ctx context.Context) error {
	return refcluster.Await(ctx, patience, "the migrations to end", func(ctx context.Context) error {
		var list v1.VirtualMachineInstanceMigrationList
		if err := s.cluster.Client.List(ctx, &list, client.InNamespace(guestKey.Namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if m := &list.Items[i]; !m.IsFinal() {
				return fmt.Errorf("%s is %s", m.Name, m.Status.Phase)
			}
		}
		return nil
	})
}

// halt stops the VM, which stays.
func (s machine) halt(ctx context.Context) error {
	if err := s.patch(ctx, `{"spec":{"runStrategy":"Halted"}}`); err != nil {
		return err
	}
	err := refcluster.Await(ctx, patience, "the VM to stop", func(ctx context.Context) error {
		vm := &v1.VirtualMachine{}
		if err := s.cluster.Client.Get(ctx, guestKey, vm); err != nil {
			return err
		}
		if vm.Status.PrintableStatus != v1.VirtualMachineStatusStopped {
			return fmt.Errorf("it is %s", vm.Status.PrintableStatus)
		}
		return s.nothing(ctx, &v1.VirtualMachineInstanceList{}, &corev1.PodList{})
	})
	lines := s.console.Lines()
	s.log.report("guest", "last words", lines[len(lines)-1])
	return s.log.promise(err == nil, "halted, the VM stays, without VMI and Pod%s", because(err))
}

// remove deletes all that was applied.
func (s machine) remove(ctx context.Context) error {
	if _, err := s.kubectl(ctx, nil, "delete", "--wait", "--timeout="+patience.String(), "-n", guestKey.Namespace, "vm/"+guestKey.Name, "service/"+guestKey.Name); err != nil {
		return err
	}
	err := refcluster.Await(ctx, patience, "nothing to be left of the VM", func(ctx context.Context) error {
		return s.nothing(ctx, &v1.VirtualMachineList{}, &v1.VirtualMachineInstanceList{}, &v1.VirtualMachineInstanceMigrationList{},
			&corev1.PodList{}, &appsv1.ControllerRevisionList{})
	})
	return s.log.promise(err == nil, "nothing is left of the VM%s", because(err))
}

// nothing returns an error unless there are no such objects.
func (s machine) nothing(ctx context.Context, lists ...client.ObjectList) error {
	var errs []error
	for _, list := range lists {
		err := s.cluster.Client.List(ctx, list, client.InNamespace(guestKey.Namespace))
		if n := meta.LenList(list); err == nil && n > 0 {
			err = fmt.Errorf("%T has %d", list, n)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
