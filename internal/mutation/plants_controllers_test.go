// SPDX-License-Identifier: Apache-2.0

package mutation

// controllers are bugs of vmictrl, migrationctrl and domainctrl: of what is read live, how a write is guarded, and what
// an error means.
var controllers = []Plant{
	{
		Name: "any error while reading the Node is proof that it is gone", File: "vmi/vmictrl/nodes.go", Package: "vmi/vmictrl",
		Run: "^TestEvidence_NodeGoneFromAPIServer$",
		Old: "\tcase err != nil:\n\t\treturn nil, err // a failed read is no evidence\n\tcase live == nil:", New: "\tcase err != nil || live == nil:",
	},
	{
		Name: "the cache is proof that a Node is gone", File: "vmi/vmictrl/nodes.go", Package: "vmi/vmictrl",
		Run: "^TestEvidence_NodeGoneFromAPIServer$",
		Old: "switch live, err := readNode(ctx, r.APIReader, node); {", New: "switch live, err := r.nodes.read(ctx, node); {",
	},
	{
		Name: "Pods are found by labels that a tenant may write", File: "vmi/vmictrl/gather.go", Package: "vmi/vmictrl", Run: "^TestPodsGone_NotByLabels$",
		Old: "client.Limit(livePage), client.Continue(all.Continue))",
		New: "client.Limit(livePage), client.Continue(all.Continue), client.MatchingLabels{v1.CreatedByLabel: string(g.VMI.UID)})",
	},
	{
		Name: "a Pod of that name is adopted, whosever it is", File: "vmi/vmictrl/act_objects.go", Package: "vmi/vmictrl",
		Run: "^TestAdopt_PodOfAnotherOwner$",
		Old: "is == nil || want == nil || is.UID != want.UID {", New: "is != nil && want == nil {",
	},
	{
		Name: "an offer is taken back on the word of a cache", File: "vmi/vmictrl/nodes.go", Package: "vmi/vmictrl",
		Run: "^TestScheduled_OfferStaysIfOnlyCacheIsOverdue$",
		Old: "live, err := readNode(ctx, r.APIReader, name)\n\treturn stock(live), err", New: "return stock(node), nil",
	},
	{
		Name: "a status is stored over a newer one", File: "migration/migrationctrl/store.go", Package: "migration/migrationctrl",
		Run: "^TestStore_StatusOfWhatHasChangedIsNotWritten$",
		Old: "patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})", New: "patch := client.MergeFrom(was)",
	},
	{
		Name: "the finalizer goes although an action failed", File: "migration/migrationctrl/store.go", Package: "migration/migrationctrl",
		Run: "^TestStore_FinalizerStaysWhileActionsFail$",
		Old: "if len(g.Failures) > 0 {", New: "if len(g.Failures) > 99 {",
	},
	{
		Name: "a VMI is changed whatever became of it", File: "migration/migrationctrl/act.go", Package: "migration/migrationctrl",
		Run: "^TestChangeVMI_GuestThatHasChangedIsNotWritten$",
		Old: "\t}, guards...)", New: "\t}, guards[:0]...)",
	},
	{
		Name: "a handoff leaves a volume behind that was hotplugged since", File: "migration/migrationctrl/act.go", Package: "migration/migrationctrl",
		Run: "^TestChangeVMI_HandoffAwaitsVolumes$",
		Old: "guards = slices.Concat(decisive, plugged)", New: "guards = slices.Clone(decisive)",
	},
	{
		Name: "a Pod is deleted by name, without its UID", File: "migration/migrationctrl/act.go", Package: "migration/migrationctrl",
		Run: "^TestDeletePod_NamesOneIncarnationAndIsAwaited$",
		Old: "Namespace: g.key.Namespace, Name: a.Pod.Name, UID: a.Pod.UID}}", New: "Namespace: g.key.Namespace, Name: a.Pod.Name}}",
	},
	{
		Name: "the deletion of a Pod is not expected", File: "migration/migrationctrl/act.go", Package: "migration/migrationctrl",
		Run: "^TestDeletePod_NamesOneIncarnationAndIsAwaited$",
		Old: "err := r.gate.For(g.owner).Delete(ctx, pod, opts...)", New: "err := r.Client.Delete(ctx, pod, append(opts, client.Preconditions{UID: &pod.UID})...)",
	},
	{
		Name: "a call that timed out counts as done", File: "domain/domainctrl/act.go", Package: "domain/domainctrl", Run: "^TestApply_UnknownOutcomeIsAnError$",
		Old: "errors.Is(err, domain.ErrNotFound) && op.Verb != domain.Start {", New: "(errors.Is(err, domain.ErrNotFound) || errors.Is(err, domain.ErrTimeout)) && op.Verb != domain.Start {",
	},
	{
		Name: "a domain that could not be started because it is not there counts as started", File: "domain/domainctrl/act.go", Package: "domain/domainctrl",
		Run: "^TestApply_UnknownOutcomeIsAnError$",
		Old: "errors.Is(err, domain.ErrNotFound) && op.Verb != domain.Start {", New: "errors.Is(err, domain.ErrNotFound) {",
	},
	{
		Name: "the state is read before the progress of a migration", File: "domain/domainctrl/gather.go", Package: "domain/domainctrl", Run: "^TestGather_MigrationEndsMeanwhile$",
		Old: "\tif err = r.connect(ctx, w, &s); err == nil {\n\t\ts.Progress, err = r.progress(ctx, name)\n\t}\n\tif err == nil {\n\t\ts.MigrationActive = s.Progress != nil\n\t\ts.State, err = r.inspect(ctx, name)\n\t}",
		New: "\tif err = r.connect(ctx, w, &s); err == nil {\n\t\ts.State, err = r.inspect(ctx, name)\n\t}\n\tif err == nil {\n\t\ts.Progress, err = r.progress(ctx, name)\n\t\ts.MigrationActive = s.Progress != nil\n\t}",
	},
	{
		Name: "a launcher that does not answer counts as one that is gone", File: "domain/domainctrl/gather.go", Package: "domain/domainctrl", Run: "^TestDomainGone",
		Old: "return r.Connector != nil && s.VMI == nil && (errors.Is(err, domain.ErrDisconnected) || errors.Is(err, domain.ErrNotReady))",
		New: "return r.Connector != nil && (errors.Is(err, domain.ErrDisconnected) || errors.Is(err, domain.ErrNotReady))",
	},
	{
		Name: "a plan for a cached VMI is carried out although the stored one differs", File: "domain/domainctrl/observed.go", Package: "domain/domainctrl",
		Run: "^TestNode$/^lets_a_stale_cache",
		Old: "if err == nil && !sameVersion(w.vmi, v.vmi) {", New: "if err == nil && !sameVersion(w.vmi, v.vmi) && false {",
	},
	{
		Name: "files are made for a VMI whose only evidence is its own object", File: "domain/plan/prepare.go", Package: "domain/plan", Run: "^TestPreparations_",
		Old: "if _, err := s.proof(lease); err != nil {", New: "if _, err := s.proof(lease); err != nil && false {",
	},
}
