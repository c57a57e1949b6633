// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// server answers the kubelet.
type server struct {
	kubelet.UnimplementedDevicePluginServer

	device Device
	// load is called before the device is handed out; nil if nothing needs to be.
	load func() error

	mu sync.Mutex
	// healthy and ended are what the next list says, changed is closed when
	// either is no longer what it was.
	healthy bool
	ended   bool
	changed chan struct{}
	// watching counts the streams that have sent a list.
	watching int
}

func newServer(d Device, healthy bool, load func() error) *server {
	return &server{device: d, healthy: healthy, load: load, changed: make(chan struct{})}
}

// setHealthy makes all streams send the list again if that changes it.
func (s *server) setHealthy(healthy bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.healthy == healthy || s.ended {
		return false
	}
	s.healthy = healthy
	s.lockedTell()
	return true
}

// end makes all streams send an empty list, and end.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended = true
		s.lockedTell()
	}
}

func (s *server) lockedTell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// watched tells whether a kubelet has got a list and listens for the next.
func (s *server) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watching > 0 && !s.ended
}

// list is what there is of the device, and what is closed once that is no longer so.
func (s *server) list() (list *kubelet.ListAndWatchResponse, changed <-chan struct{}, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list = &kubelet.ListAndWatchResponse{}
	if s.ended {
		return list, s.changed, true
	}
	health := kubelet.Unhealthy
	if s.healthy {
		health = kubelet.Healthy
	}
	for i := range s.device.Slots {
		list.Devices = append(list.Devices, &kubelet.Device{ID: s.device.slot(i), Health: health})
	}
	return list, s.changed, false
}

// count adds to the streams that have sent a list.
func (s *server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching += n
}

// GetDevicePluginOptions says that the kubelet need ask nothing before a container
// starts.
func (s *server) GetDevicePluginOptions(context.Context, *kubelet.Empty) (*kubelet.DevicePluginOptions, error) {
	return &kubelet.DevicePluginOptions{}, nil
}

// ListAndWatch sends the list, and again whenever it changes.
func (s *server) ListAndWatch(_ *kubelet.Empty, stream grpc.ServerStreamingServer[kubelet.ListAndWatchResponse]) error {
	for first := true; ; first = false {
		list, changed, last := s.list()
		if err := stream.Send(list); err != nil {
			return err
		}
		if last {
			return nil
		}
		if first {
			s.count(1)
			defer s.count(-1)
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// Allocate names the device nodes for each container.
func (s *server) Allocate(_ context.Context, req *kubelet.AllocateRequest) (*kubelet.AllocateResponse, error) {
	out := &kubelet.AllocateResponse{}
	for _, container := range req.GetContainerRequests() {
		if err := s.check(container.GetDevicesIds()); err != nil {
			return nil, err
		}
		answer := &kubelet.ContainerAllocateResponse{}
		for _, n := range s.device.Nodes {
			answer.Devices = append(answer.Devices, &kubelet.DeviceSpec{ContainerPath: n, HostPath: n, Permissions: s.device.Permissions})
		}
		out.ContainerResponses = append(out.ContainerResponses, answer)
	}
	if s.load != nil {
		if err := s.load(); err != nil {
			return nil, status.Errorf(codes.Unavailable, "%s cannot be used: %v", s.device.Resource(), err)
		}
	}
	return out, nil
}

// PreStartContainer has nothing to prepare; it refuses what Allocate would.
func (s *server) PreStartContainer(_ context.Context, req *kubelet.PreStartContainerRequest) (*kubelet.PreStartContainerResponse, error) {
	return &kubelet.PreStartContainerResponse{}, s.check(req.GetDevicesIds())
}

// check refuses identities the kubelet was never given, and a device that is gone.
func (s *server) check(ids []string) error {
	seen := map[string]bool{}
	for _, id := range ids {
		if !s.device.has(id) || seen[id] {
			return status.Errorf(codes.InvalidArgument, "%q is no slot of %s, or is asked for twice", id, s.device.Resource())
		}
		seen[id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(ids) == 0:
		return status.Errorf(codes.InvalidArgument, "no slot of %s is asked for", s.device.Resource())
	case s.ended:
		return status.Errorf(codes.Unavailable, "%s is being withdrawn", s.device.Resource())
	case !s.healthy:
		return status.Errorf(codes.FailedPrecondition, "%s is not on this node at the moment", s.device.Resource())
	}
	return nil
}
