// SPDX-License-Identifier: Apache-2.0

// Package rotation replaces what is in a Secret before it expires: a certificate, or an authority that signs certificates. A new
// one is published before it is used, so that each client that has to trust it knows it already.
//
//	Secret           tls.crt, tls.key     in force
//	                 next.crt, next.key   the next one, which is published but not used yet
//	                 ca.crt               all authorities to trust: of both, and the former ones that have not expired
//
// Each step is one write of the Secret under the version that was read, so that of several writers one succeeds and the others
// read its result.
package rotation

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// KeyAuthorities is the key of the authorities to trust, in the Secret and wherever they are published.
const KeyAuthorities = "ca.crt"

const (
	keyCertificate, keyKey         = corev1.TLSCertKey, corev1.TLSPrivateKeyKey
	keyNextCertificate, keyNextKey = "next.crt", "next.key"
)

// Early is the time by which NotBefore precedes the issue, as the clocks of machines differ.
const Early = time.Hour

const (
	// looks is the number of checks within the lifetime of a certificate, but at least one in mostBetween.
	looks       = 30
	mostBetween = time.Minute
	// retry is the delay after a failed check.
	retry = time.Second
)

// Pair is a certificate, with its chain behind it, and its key, both in PEM.
type Pair struct{ Certificate, Key []byte }

// Rotation is the rules for the content of one Secret.
type Rotation struct {
	// Secret names the Secret. It must exist; it may be empty.
	Secret types.NamespacedName
	// Lifetime is that of a Pair, which is replaced when a third of it is left.
	Lifetime time.Duration
	// Now is the time.
	Now time.Time
	// Valid returns the authority to trust for a stored pair; nil if the pair must not be used. The trusted authorities are those
	// of the Secret.
	Valid func(p Pair, trusted []*x509.Certificate) *x509.Certificate
	// Issue makes a pair, and returns it with its authority.
	Issue func() (Pair, *x509.Certificate, error)
	// Known reports whether the authority of the next pair is known to whoever has to trust it, so that the pair may be used.
	Known func(authority *x509.Certificate) bool
}

// Step takes the step that is due, and returns the content of the Secret, which is the same if there was none.
func (r *Rotation) Step(ctx context.Context, reader client.Reader, writer client.Writer) (map[string][]byte, error) {
	s, err := readSecret(ctx, reader, r.Secret)
	if err != nil {
		return nil, err
	}
	next, err := r.advance(s.Data)
	if err != nil {
		return nil, err
	}
	if maps.EqualFunc(s.Data, next, bytes.Equal) {
		return s.Data, nil
	}
	s.Data = next
	if err := writer.Update(ctx, s); err != nil {
		return nil, fmt.Errorf("store certificates in Secret %s: %w", r.Secret, err)
	}
	log.FromContext(ctx).Info("Stored certificates", "secret", r.Secret)
	return s.Data, nil
}

// advance returns the next data of the Secret. An authority is trusted before a certificate of it is used, and until it expires.
func (r *Rotation) advance(stored map[string][]byte) (map[string][]byte, error) {
	data := maps.Clone(stored)
	if data == nil {
		data = map[string][]byte{}
	}
	current, next := r.valid(data, keyCertificate, keyKey), r.valid(data, keyNextCertificate, keyNextKey)
	var err error
	switch {
	case current == nil: // nothing can be used: there is nothing to wait for
		next = nil
		current, err = r.issue(data, keyCertificate, keyKey)
	case next != nil && r.Known(next):
		current, next = next, nil
		data[keyCertificate], data[keyKey] = data[keyNextCertificate], data[keyNextKey]
	case next == nil && current.NotAfter.Sub(r.Now) < r.Lifetime/3:
		next, err = r.issue(data, keyNextCertificate, keyNextKey)
	}
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for Secret %s: %w", r.Secret, err)
	}
	trusted := []*x509.Certificate{current}
	if next == nil {
		delete(data, keyNextCertificate)
		delete(data, keyNextKey)
	} else {
		trusted = append(trusted, next)
	}
	data[KeyAuthorities], err = r.bundle(trusted, data[KeyAuthorities])
	return data, err
}

// bundle returns the given authorities, and the former ones that have not expired.
func (r *Rotation) bundle(all []*x509.Certificate, former []byte) ([]byte, error) {
	known, err := cert.ParseCertsPEM(former)
	if err == nil { // otherwise absent or unreadable
		for _, c := range known {
			if r.Now.Before(c.NotAfter) && !slices.ContainsFunc(all, c.Equal) {
				all = append(all, c)
			}
		}
	}
	return cert.EncodeCertificates(all...)
}

func (r *Rotation) valid(data map[string][]byte, certificate, key string) *x509.Certificate {
	trusted, err := cert.ParseCertsPEM(data[KeyAuthorities])
	if err != nil {
		trusted = nil // absent or unreadable
	}
	return r.Valid(Pair{Certificate: data[certificate], Key: data[key]}, trusted)
}

func (r *Rotation) issue(data map[string][]byte, certificate, key string) (*x509.Certificate, error) {
	p, authority, err := r.Issue()
	data[certificate], data[key] = p.Certificate, p.Key
	return authority, err
}

// InForce returns the pair that is used now, from the data of a Secret.
func InForce(data map[string][]byte) (tls.Certificate, error) {
	return tls.X509KeyPair(data[keyCertificate], data[keyKey])
}

// Read returns the pair in force of a Secret.
func Read(ctx context.Context, reader client.Reader, secret types.NamespacedName) (tls.Certificate, error) {
	s, err := readSecret(ctx, reader, secret)
	if err != nil {
		return tls.Certificate{}, err
	}
	return InForce(s.Data)
}

func readSecret(ctx context.Context, reader client.Reader, secret types.NamespacedName) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	if err := reader.Get(ctx, secret, s); err != nil {
		return nil, fmt.Errorf("read Secret %s, which comes with the manifests: %w", secret, err)
	}
	return s, nil
}

// Run looks until the context ends, often enough for certificates of a lifetime, and soon again after a failure.
func Run(ctx context.Context, lifetime time.Duration, look func(context.Context) error) error {
	for ctx.Err() == nil {
		pause := min(mostBetween, lifetime/looks)
		switch err := look(ctx); {
		case apierrors.IsConflict(err): // another client was faster, such as another replica or a former leader
			pause = min(pause, retry)
		case err != nil && ctx.Err() == nil:
			log.FromContext(ctx).Error(err, "Maintaining certificates failed, retrying")
			pause = min(pause, retry)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// Contains reports whether a bundle in PEM holds an authority.
func Contains(bundle []byte, authority *x509.Certificate) bool {
	known, err := cert.ParseCertsPEM(bundle)
	return err == nil && slices.ContainsFunc(known, authority.Equal)
}

// Now returns the time of a clock, the real one if it is nil.
func Now(c clock.PassiveClock) time.Time {
	if c == nil {
		return clock.RealClock{}.Now()
	}
	return c.Now()
}
