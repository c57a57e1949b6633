// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/refdaemon/config/rbac"
	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/refdaemon/servingcert"
	"github.com/virtloom/virtloom/template/templatectrl"
	"github.com/virtloom/virtloom/vmi/admit"
)

// groupPrefix marks the entries of trust that name groups.
const groupPrefix = "group:"

// admission serves the webhooks of package admit, if an address is configured.
type admission struct {
	webhooks configfile.Webhooks
	// certificate keeps the serving certificate in a Secret; nil if files hold it.
	certificate *servingcert.Keeper
	// cluster reads the KubeVirt object; set by addAdmission.
	cluster templatectrl.Gatherer
}

func (a *admission) enabled() bool { return configfile.Serves(a.webhooks.Address) }

// server returns the webhook server; nil if webhooks are disabled.
func (a *admission) server() webhook.Server {
	host, port, err := configfile.HostPort(a.webhooks.Address)
	if !a.enabled() || err != nil {
		return nil
	}
	o := webhook.Options{Host: host, Port: port, CertDir: a.webhooks.CertDir}
	if namespace, name, found := strings.Cut(a.webhooks.CertSecret, "/"); found {
		a.certificate = &servingcert.Keeper{
			Secret: types.NamespacedName{Namespace: namespace, Name: name}, Lifetime: a.webhooks.CertLifetime.Duration,
		}
		o.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.GetCertificate = a.certificate.GetCertificate }}
	}
	return webhook.NewServer(o)
}

// addAdmission registers the paths of refdaemon/config/webhook.
func (a *admission) addAdmission(_ context.Context, mgr ctrl.Manager) error {
	if !a.enabled() {
		return nil
	}
	a.cluster = templatectrl.Gatherer{Client: mgr.GetClient()}
	if a.certificate != nil {
		a.certificate.Reader, a.certificate.Writer = mgr.GetAPIReader(), mgr.GetClient()
		if err := mgr.Add(a.certificate); err != nil {
			return fmt.Errorf("maintain the webhook serving certificate: %w", err)
		}
	}
	server := mgr.GetWebhookServer()
	server.Register("/mutate-vmi", webhookadmission.WithDefaulter(mgr.GetScheme(), a))
	server.Register("/validate-vmi", webhookadmission.WithValidator(mgr.GetScheme(), a))
	machines := &machineAdmission{admission: a, reader: mgr.GetAPIReader()}
	server.Register("/mutate-vm", webhookadmission.WithDefaulter(mgr.GetScheme(), machines))
	server.Register("/validate-vm", webhookadmission.WithValidator(mgr.GetScheme(), machines))
	return mgr.AddReadyzCheck("webhooks", server.StartedChecker())
}

// config returns the admission configuration for a request of the user.
func (a *admission) config(ctx context.Context, user authenticationv1.UserInfo) (admit.Config, error) {
	kv, err := a.cluster.KubeVirt(ctx)
	if err != nil {
		return admit.Config{}, err
	}
	c := admit.ConfigFrom(kv)
	c.ReservedAnnotations = []string{handoff.Annotation}
	c.Request = admit.Request{
		Now: metav1.NewTime(clock.RealClock{}.Now()), FirmwareUUID: uuid.NewUUID(), Privileged: a.privileged(user, kv),
	}
	return c, nil
}

// privileged reports whether the user belongs to the control plane.
func (a *admission) privileged(user authenticationv1.UserInfo, kv *v1.KubeVirt) bool {
	serviceAccount := func(namespace, name string) string { return "system:serviceaccount:" + namespace + ":" + name }
	names := []string{rbac.ControllerUser, serviceAccount(rbac.Namespace, "virtloom-controller"), serviceAccount(rbac.NodeNamespace, "virtloom-node")}
	if kv != nil {
		for _, name := range []string{"kubevirt-apiserver", "kubevirt-controller", "kubevirt-handler", "kubevirt-synchronization-controller"} {
			names = append(names, serviceAccount(kv.Namespace, name))
		}
	}
	groups := []string{rbac.NodesGroup}
	for _, t := range a.webhooks.Trust {
		if group, isGroup := strings.CutPrefix(t, groupPrefix); isGroup {
			groups = append(groups, group)
		} else {
			names = append(names, t)
		}
	}
	return slices.Contains(names, user.Username) || slices.ContainsFunc(user.Groups, func(g string) bool { return slices.Contains(groups, g) })
}

// judged returns the admission request in ctx and the configuration to judge it by.
func (a *admission) judged(ctx context.Context) (webhookadmission.Request, admit.Config, error) {
	req, err := webhookadmission.RequestFromContext(ctx)
	if err != nil {
		return req, admit.Config{}, err
	}
	c, err := a.config(ctx, req.UserInfo)
	return req, c, err
}

// Default sets defaults on a new VMI and preserves the status of an existing one.
func (a *admission) Default(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	req, c, err := a.judged(ctx)
	if err != nil {
		return err
	}
	if req.Operation != admissionv1.Update {
		admit.Default(vmi, c)
		return nil
	}
	old := &v1.VirtualMachineInstance{}
	if err := json.Unmarshal(req.OldObject.Raw, old); err != nil {
		return fmt.Errorf("decode the old VMI: %w", err)
	}
	admit.DefaultUpdate(old, vmi, c)
	return nil
}

// ValidateCreate rejects an invalid new VMI.
func (a *admission) ValidateCreate(ctx context.Context, vmi *v1.VirtualMachineInstance) (webhookadmission.Warnings, error) {
	_, c, err := a.judged(ctx)
	if err != nil {
		return nil, err
	}
	return nil, refusal(vmi, admit.Validate(vmi, c))
}

// ValidateUpdate rejects a forbidden change of a VMI.
func (a *admission) ValidateUpdate(ctx context.Context, old, vmi *v1.VirtualMachineInstance) (webhookadmission.Warnings, error) {
	_, c, err := a.judged(ctx)
	if err != nil {
		return nil, err
	}
	return nil, refusal(vmi, admit.ValidateUpdate(old, vmi, c))
}

// ValidateDelete allows every deletion.
func (*admission) ValidateDelete(context.Context, *v1.VirtualMachineInstance) (webhookadmission.Warnings, error) {
	return nil, nil
}

func refusal(vmi *v1.VirtualMachineInstance, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1.VirtualMachineInstanceGroupVersionKind.GroupKind(), vmi.Name, errs)
}
