// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// executor carries out the actions of a plan.
type executor struct{ *Sim }

// act executes the writes until one fails.
func (s executor) act(j *job, plan migration.Plan) map[migration.Verb]error {
	for _, a := range plan.Actions {
		if err := s.do(j, a); err != nil {
			return map[migration.Verb]error{a.Verb: err}
		}
	}
	return nil
}

func (s executor) do(j *job, a migration.Action) error {
	g := j.guest
	switch a.Verb {
	case migration.Adopt:
		metav1.SetMetaDataLabel(&j.m.ObjectMeta, v1.MigrationSelectorLabel, j.m.Spec.VMIName)
		j.m.Finalizers = append(j.m.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)
	case migration.CreateTarget:
		return s.createTarget(j)
	case migration.CreateAttachment:
		s.createAttachment(j, a.Volumes)
	case migration.AnnotatePod:
		s.annotate(g, a)
	case migration.CreateClaim, migration.ChangeClaim:
		g.claims[a.Claim.Name] = a.Claim
	case migration.DeleteClaim:
		delete(g.claims, a.Claim.Name)
	case migration.DeletePod:
		kubelet(s).deletePod(g, a.Pod.Name)
	case migration.ChangeVMI:
		return s.change(g, a.Change)
	case migration.Collect:
		controller(s).forget(s.jobs[types.NamespacedName{Namespace: j.m.Namespace, Name: a.Name}])
	case migration.AbortBackup:
		s.abortBackup(g)
	default:
		err := fmt.Errorf("%w: %s", errUnknownAction, a.Verb)
		s.giveUp(j, err)
		return err
	}
	return nil
}

// abortBackup ends the backup of the VMI.
func (s executor) abortBackup(g *simulatedGuest) {
	s.after(s.o.Latency.Begin, func() {
		if t := g.VMI.Status.ChangedBlockTracking; t != nil && t.BackupStatus != nil {
			t.BackupStatus.Completed = true
			controller(s).changed(g)
		}
	})
}

// giveUp ends the simulation of a migration: its further course is unknown. It keeps what it
// holds.
func (s executor) giveUp(j *job, why error) {
	j.unplayed = true
	j.record.Reason, j.record.Message = migration.ReasonUnsupported, "the simulation ends here: "+why.Error()
	if !j.m.IsFinal() {
		s.ledger.ended()
	}
	delete(s.leaving, j.guest)
}

// change writes the VMI.
func (s executor) change(g *simulatedGuest, c *migration.VMIChange) error {
	if err := c.Apply(g.VMI); err != nil {
		return err
	}
	s.ledger.moved(g)
	controller(s).changed(g)
	agents(s).react(g)
	return nil
}
