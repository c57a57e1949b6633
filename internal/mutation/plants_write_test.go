// SPDX-License-Identifier: Apache-2.0

package mutation

// writes are bugs of what is known of own writes, and of how they are guarded.
var writes = []Plant{
	{
		Name: "a tombstone counts as a removal", File: "expectations/entry.go", Package: "expectations", Run: "^TestEvidence$",
		Old: "if kind == DeletedUnknown {", New: "if kind == DeletedUnknown && e.verb != Delete {",
	},
	{
		Name: "an ambiguous error counts as a failure", File: "expectations/classify.go", Package: "expectations", Run: "^TestClassify$",
		Old: "\tdefault:\n\t\treturn Ambiguous\n", New: "\tdefault:\n\t\treturn Refused\n",
	},
	{
		Name: "a bare 408 counts as a refusal", File: "expectations/classify.go", Package: "expectations", Run: "^TestClassify_BareRequestTimeout$",
		Old: "case s.Code == http.StatusRequestTimeout:", New: "case s.Code == http.StatusRequestTimeout && s.Reason != \"\":",
	},
	{
		Name: "< for <= in what shows a version", File: "expectations/entry.go", Package: "expectations", Run: "^TestEvidence$",
		Old: "return ok && c >= 0, ok\n", New: "return ok && c > 0, ok\n",
	},
	{
		Name: "an older version counts as the one awaited", File: "expectations/entry.go", Package: "expectations", Run: "^TestAnswer$",
		Old: "\treturn ok && c < 0\n", New: "\treturn ok && c <= 0\n",
	},
	{
		Name: "an expectation that is old is dropped", File: "expectations/check.go", Package: "expectations", Run: "^TestAnswer$",
		Old: "p.Problem, first, e.told = Overdue, !e.told, true", New: "ob.mu.Unlock()\n\t\treturn p, due, false",
	},
	{
		Name: "writes of an earlier owner of the name hold up", File: "expectations/check.go", Package: "expectations", Run: "^TestOwner_DistinguishedByUID$",
		Old: "return e.owner.UID == o.UID }), now)", New: "return e.owner.UID != \"\" }), now)",
	},
	{
		Name: "a deletion is shown by an object that is not being deleted", File: "expectations/entry.go", Package: "expectations", Run: "^TestEvidence$",
		Old: "return removal || obj.GetDeletionTimestamp() != nil, true", New: "return true, true",
	},
	{
		Name: "patch without the UID", File: "internal/vmipatch/patch.go", Package: "internal/vmipatch", Run: "^TestPatch_APIServer$",
		Old: "p.must(\"/metadata/uid\", string(was.UID))\n", New: "",
	},
	{
		Name: "patch without the resourceVersion it was asked to test", File: "internal/vmipatch/patch.go", Package: "internal/vmipatch", Run: "^TestPatch_APIServer$",
		Old: "p.must(\"/metadata/resourceVersion\", was.ResourceVersion)", New: "_ = was.ResourceVersion",
	},
	{
		Name: "the refused patch is sent again without a guard", File: "internal/vmipatch/patch.go", Package: "internal/vmipatch", Run: "^TestPatch_APIServer$",
		Old: "if data, err = Between(was, want, Version); err != nil {", New: "if data, err = Between(was, want); err != nil {",
	},
	{
		Name: "guards are forgotten", File: "internal/vmipatch/patch.go", Package: "internal/vmipatch", Run: "^TestPatch_APIServer$",
		Old: "if g.isVersion() {\n\t\t\tcontinue", New: "if g.isVersion() || len(g.at) > 0 {\n\t\t\tcontinue",
	},
}
