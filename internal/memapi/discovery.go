// SPDX-License-Identifier: Apache-2.0

package memapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// discover serves the discovery of the kinds.
func (c *call) discover() *http.Response {
	switch words := strings.Split(c.resource, "/"); {
	case c.resource == "api":
		return c.json(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case c.resource == "apis":
		return c.json(c.server.groups())
	case words[0] == "api":
		return c.resources(schema.GroupVersion{Version: words[1]})
	case len(words) == 3:
		return c.resources(schema.GroupVersion{Group: words[1], Version: words[2]})
	default:
		all := c.server.groups().Groups
		if i := slices.IndexFunc(all, func(g metav1.APIGroup) bool { return g.Name == words[1] }); i >= 0 {
			return c.json(all[i])
		}
		return c.failed(apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, c.resource, "no such group", 0, true))
	}
}

func (c *call) json(o any) *http.Response {
	text, err := json.Marshal(o)
	if err != nil {
		return c.failed(err)
	}
	return c.answer(http.StatusOK, text)
}

func (s *Server) groups() *metav1.APIGroupList {
	out := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for gvr := range s.tables {
		v := metav1.GroupVersionForDiscovery{GroupVersion: gvr.GroupVersion().String(), Version: gvr.Version}
		if gvr.Group == "" || slices.ContainsFunc(out.Groups, func(g metav1.APIGroup) bool { return g.Name == gvr.Group }) {
			continue
		}
		out.Groups = append(out.Groups, metav1.APIGroup{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: gvr.Group,
			Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v,
		})
	}
	return out
}

func (c *call) resources(gv schema.GroupVersion) *http.Response {
	out := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
	for gvr, t := range c.server.tables {
		if gvr.GroupVersion() == gv {
			out.APIResources = append(out.APIResources, metav1.APIResource{
				Name: gvr.Resource, Kind: t.kind.Kind, Namespaced: !t.kind.Cluster,
				Verbs: metav1.Verbs{"get", "list", "watch", "create", "update", "patch", "delete"},
			})
		}
	}
	if len(out.APIResources) == 0 {
		return c.failed(apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, gv.String(), "no such group", 0, true))
	}
	return c.json(out)
}
