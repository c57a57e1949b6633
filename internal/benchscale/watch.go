// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// seen is as much of a Pod, a guest or a migration as is looked at. To decode all of it would take
// processor time from what is measured.
type seen struct {
	Metadata struct {
		Name, UID       string
		Labels          map[string]string
		Finalizers      []string
		OwnerReferences []struct{ Name string }
	}
	Status struct {
		Phase          string
		Conditions     []struct{ Type, Status, Reason, Message string }
		MigrationState *struct{ MigrationUID, TargetNode string }
	}
	// Message is what a watch that ends says.
	Message string
}

// watched are the kinds that are watched in the namespace, and what is noted of each.
var watched = map[string]func(*recorder, *seen, time.Time){
	"/api/v1/namespaces/" + namespace + "/pods":                                          noteOfPod,
	"/apis/kubevirt.io/v1/namespaces/" + namespace + "/virtualmachineinstances":          noteOfGuest,
	"/apis/kubevirt.io/v1/namespaces/" + namespace + "/virtualmachineinstancemigrations": noteOfMove,
}

// startWatches begins to watch, and returns when the API server has agreed to that.
func startWatches(ctx context.Context, config *rest.Config, r *recorder) error {
	config = rest.CopyConfig(config)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	for path, note := range watched {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path+"?watch=1&timeoutSeconds=86400", http.NoBody)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		answer, err := client.Do(request)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if answer.StatusCode != http.StatusOK {
			_ = answer.Body.Close()
			return fmt.Errorf("watch %s: %s", path, answer.Status)
		}
		go func() {
			defer answer.Body.Close()
			err := follow(json.NewDecoder(answer.Body), func(s *seen) { note(r, s, time.Now()) })
			if ctx.Err() == nil {
				r.fail(fmt.Errorf("watch %s: %w", path, err))
			}
		}()
	}
	return nil
}

// follow reads events until there are no more, which is always an error.
func follow(events *json.Decoder, note func(*seen)) error {
	for {
		var event struct {
			Type   string
			Object seen
		}
		switch err := events.Decode(&event); {
		case err != nil:
			return err
		case event.Type == "ERROR":
			return fmt.Errorf("the API server ends it: %s", event.Object.Message)
		case event.Type == "DELETED", event.Type == "BOOKMARK":
			continue
		}
		note(&event.Object)
	}
}

// noteOfPod notes of the Pod of a guest, or of one that it is to move to.
func noteOfPod(r *recorder, s *seen, now time.Time) {
	if s.Metadata.Labels[v1.AppLabel] != "virt-launcher" || len(s.Metadata.OwnerReferences) == 0 {
		return
	}
	object, created, running := s.Metadata.OwnerReferences[0].Name, podCreated, podRunning
	if uid := s.Metadata.Labels[v1.MigrationJobLabel]; uid != "" {
		object, created, running = uid, targetCreated, targetRunning
	}
	r.note(created, object, now)
	if s.Status.Phase == "Running" {
		r.note(running, object, now)
	}
}

func noteOfGuest(r *recorder, s *seen, now time.Time) {
	switch v1.VirtualMachineInstancePhase(s.Status.Phase) {
	case v1.Running:
		r.note(guestScheduled, s.Metadata.Name, now)
		r.note(guestRunning, s.Metadata.Name, now)
	case v1.Scheduled:
		r.note(guestScheduled, s.Metadata.Name, now)
	case v1.Failed, v1.Succeeded:
		r.fail(fmt.Errorf("guest %s ended in phase %s: %+v", s.Metadata.Name, s.Status.Phase, s.Status.Conditions))
	}
	if m := s.Status.MigrationState; m != nil && m.TargetNode != "" {
		r.note(handedOff, m.MigrationUID, now)
	}
}

func noteOfMove(r *recorder, s *seen, now time.Time) {
	for _, c := range s.Status.Conditions {
		switch {
		case c.Type != string(migration.ConditionWaiting):
		case c.Reason == string(migration.ReasonWaitingForSlot):
			r.note(moveWaiting, s.Metadata.UID, now)
		case c.Reason == string(migration.ReasonCreateFailed):
			r.fail(fmt.Errorf("migration %s got no target Pod: %s", s.Metadata.Name, c.Message))
		}
	}
	switch v1.VirtualMachineInstanceMigrationPhase(s.Status.Phase) {
	case v1.MigrationSucceeded:
		r.note(moveSucceeded, s.Metadata.UID, now)
		if len(s.Metadata.Finalizers) == 0 {
			r.note(moveTidied, s.Metadata.UID, now)
		}
	case v1.MigrationFailed:
		r.fail(fmt.Errorf("migration %s failed: %+v", s.Metadata.Name, s.Status.Conditions))
	}
}
