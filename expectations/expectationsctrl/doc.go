// SPDX-License-Identifier: Apache-2.0

// Package expectationsctrl connects package expectations to controller-runtime.
//
//   - RecordingClient wraps a client.Client; what it writes on behalf of an owner is expected by itself.
//   - Observing and ObservePredicate feed watch events to the tracker.
//   - Waker is a source.Source that enqueues owners whose writes have become visible.
//   - Resolver does the live reads that an expired verdict asks for.
//
// A controller puts them together like this:
//
//	waker := expectationsctrl.NewWaker()
//	tracker, err := expectations.New(expectations.Options{Now: clock.Now, Wake: waker.Wake})
//	writes := expectationsctrl.NewRecordingClient(mgr.GetClient(), tracker, mgr.GetCache())
//	gate := &expectationsctrl.Resolver{Tracker: tracker, Reader: mgr.GetAPIReader(), Mapper: mgr.GetRESTMapper()}
//
//	builder.ControllerManagedBy(mgr).
//		For(&v1.VirtualMachineInstance{}, builder.WithPredicates(expectationsctrl.ObservePredicate(tracker, vmiKind))).
//		Watches(&corev1.Pod{}, expectationsctrl.Observing(tracker, podKind, enqueueOwner)).
//		WatchesRawSource(waker)
//
// and at the start of Reconcile:
//
//	verdict, err := gate.Check(ctx, owner)
//	if err != nil || !verdict.Satisfied() {
//		return reconcile.Result{RequeueAfter: verdict.RequeueAfter}, err
//	}
//
// Predicates of a watch run before its handler. One that drops events must come after ObservePredicate, or the tracker
// will not see them and fall back to live reads.
package expectationsctrl
