// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// seen is as much of a Pod, a guest or a migration as is looked at. To decode all of it would take
// processor time from what is measured.
type seen struct {
	Metadata struct {
		Name, UID       string
		ResourceVersion string
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

// watcher watches one kind.
type watcher struct {
	client *http.Client
	url    string
	// version is the last that was seen.
	version string
	note    func(*seen)
}

// startWatches begins to watch, and returns when the API server has agreed to that.
func startWatches(ctx context.Context, config *rest.Config, r *recorder) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	for path, note := range watched {
		w := &watcher{client: client, url: config.Host + path + "?watch=1&timeoutSeconds=86400", note: func(s *seen) { note(r, s, time.Now()) }}
		first, err := w.open(ctx)
		if err != nil {
			return err
		}
		go func() {
			if err := w.run(ctx, first); ctx.Err() == nil {
				r.fail(err)
			}
		}()
	}
	return nil
}

// open asks for what comes after the last version that was seen, again while the API server is not ready to
// say: it makes the storage of a kind anew when its definition has changed.
func (w *watcher) open(ctx context.Context) (body io.ReadCloser, err error) {
	const every, within = 100 * time.Millisecond, 30 * time.Second
	end := wait.PollUntilContextTimeout(ctx, every, within, true, wait.ConditionFunc(func() (bool, error) {
		var again bool
		body, again, err = w.ask(ctx) // the watch outlives the wait
		return !again, nil
	}).WithContext())
	if err == nil {
		err = end
	}
	return body, err
}

// ask is one attempt; again says that another one may go better.
func (w *watcher) ask(ctx context.Context) (body io.ReadCloser, again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"&resourceVersion="+w.version, http.NoBody)
	if err != nil {
		return nil, false, fmt.Errorf("watch: %w", err)
	}
	answer, err := w.client.Do(request)
	if err != nil {
		return nil, false, fmt.Errorf("watch: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		again = answer.StatusCode == http.StatusTooManyRequests
		return nil, again, fmt.Errorf("watch %s: %s", w.url, answer.Status)
	}
	return answer.Body, false, nil
}

// run reads events, and goes on where it was when the API server ends the watch, as it does with one that
// reads too slowly on a busy machine.
func (w *watcher) run(ctx context.Context, body io.ReadCloser) error {
	for {
		before := w.version
		err := w.follow(json.NewDecoder(body))
		_ = body.Close()
		if errors.Is(err, errExpired) && before == w.version {
			return err
		}
		if body, err = w.open(ctx); err != nil {
			return err
		}
	}
}

// errExpired is what the API server says of a watch that it cannot go on with.
var errExpired = errors.New("the API server ends the watch")

// follow reads events until there are no more, which is always an error.
func (w *watcher) follow(events *json.Decoder) error {
	for {
		var event struct {
			Type   string
			Object seen
		}
		switch err := events.Decode(&event); {
		case err != nil:
			return err
		case event.Type == "ERROR":
			return fmt.Errorf("%w: %s", errExpired, event.Object.Message)
		}
		w.version = event.Object.Metadata.ResourceVersion
		if event.Type != "DELETED" && event.Type != "BOOKMARK" {
			w.note(&event.Object)
		}
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
