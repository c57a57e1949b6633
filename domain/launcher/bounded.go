// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/stats"
)

// bounded is a client whose launcher may report its own domain only. Other answers are left out,
// counted, and logged the first time.
type bounded struct {
	*Client
	log  logr.Logger
	left atomic.Uint64 // answers left out
}

func newBounded(c *Client, log logr.Logger) *bounded {
	return &bounded{Client: c, log: log.WithValues("guest", c.Guest().String())}
}

// leave counts an answer that is left out.
func (b *bounded) leave(what string) {
	if b.left.Add(1) == 1 {
		b.log.Info("Ignoring a launcher's report about a domain that is not its own, and later ones", "what", what)
	}
}

// sum logs how many answers were left out in all.
func (b *bounded) sum() {
	if n := b.left.Load(); n > 0 {
		b.log.Info("Removed a launcher with ignored reports", "times", n)
	}
}

// List implements domain.Hypervisor.
func (b *bounded) List(ctx context.Context) ([]domain.State, error) {
	all, err := b.Client.List(ctx)
	own := slices.DeleteFunc(all, func(st domain.State) bool {
		other := st.Name != b.Guest().Domain()
		if other {
			b.leave(fmt.Sprintf("a domain %.64q", st.Name))
		}
		return other
	})
	if len(own) > 1 {
		b.leave("a second domain of its name")
		own = own[:1]
	}
	return own, err
}

// Get implements domain.Hypervisor. A domain whose metadata is another VMI's proves neither that
// the launcher's own domain exists nor that it is gone.
func (b *bounded) Get(ctx context.Context, name string) (domain.State, error) {
	st, err := b.Client.Get(ctx, name)
	g := b.Guest()
	switch m := st.Metadata; {
	case err != nil && errors.Is(err, domain.ErrInvalid):
		b.leave("an answer that cannot be parsed")
		return domain.State{}, fmt.Errorf("%w: %w", domain.ErrDisconnected, err)
	case err != nil:
		return st, err
	case name == g.Domain() && m.UID != "" && (m.UID != g.UID || m.Namespace != g.Namespace || m.Name != g.Name):
		b.leave(fmt.Sprintf("metadata of UID %.64q", m.UID))
		return domain.State{}, fmt.Errorf("launcher: get %s: its metadata is that of another VMI: %w", name, domain.ErrDisconnected)
	}
	return st, nil
}

// Stats implements domain.StatsReader.
func (b *bounded) Stats(ctx context.Context) ([]stats.Domain, error) {
	all, err := b.Client.Stats(ctx)
	return slices.DeleteFunc(all, func(s stats.Domain) bool {
		other := s.Name != b.Guest().Domain()
		if other {
			b.leave(fmt.Sprintf("statistics of %.64q", s.Name))
		}
		return other
	}), err
}
