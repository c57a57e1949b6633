// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/stats"
)

// running is a hypervisor with a guest called g.
func running(t *testing.T, change ...func(*libvirtxml.Domain)) *memory.Hypervisor {
	t.Helper()
	h := memory.New("node")
	def := domaintest.Definition(t, "g")
	for _, c := range change {
		c(def)
	}
	if err := h.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: "g", Definition: def}); err != nil {
		t.Fatal(err)
	}
	return h
}

// calls are those of the abilities, by their names in a fault.
var calls = map[string]func(context.Context, *memory.Hypervisor) error{
	"Reset": func(ctx context.Context, h *memory.Hypervisor) error {
		return h.Apply(ctx, domain.Operation{Verb: domain.Reset, Domain: "g"})
	},
	"SetVCPUs": func(ctx context.Context, h *memory.Hypervisor) error {
		return h.Apply(ctx, domain.Operation{Verb: domain.SetVCPUs, Domain: "g", VCPUs: 1})
	},
	"GuestInfo": func(ctx context.Context, h *memory.Hypervisor) error {
		_, err := h.GuestInfo(ctx, "g")
		return err
	},
	"Freeze":  func(ctx context.Context, h *memory.Hypervisor) error { return h.Freeze(ctx, "g") },
	"Thaw":    func(ctx context.Context, h *memory.Hypervisor) error { return h.Thaw(ctx, "g") },
	"SetTime": func(ctx context.Context, h *memory.Hypervisor) error { return h.SetTime(ctx, "g", time.Unix(0, 0)) },
	"AgentCommand": func(ctx context.Context, h *memory.Hypervisor) error {
		_, err := h.AgentCommand(ctx, "g", `{"execute":"guest-ping"}`)
		return err
	},
	"Stats": func(ctx context.Context, h *memory.Hypervisor) error {
		_, err := h.Stats(ctx)
		return err
	},
	"TakeSnapshot": func(ctx context.Context, h *memory.Hypervisor) error {
		return h.TakeSnapshot(ctx, "g", domain.Snapshot{Name: "s"})
	},
	"Snapshots": func(ctx context.Context, h *memory.Hypervisor) error {
		_, err := h.Snapshots(ctx, "g")
		return err
	},
	"RevertSnapshot": func(ctx context.Context, h *memory.Hypervisor) error {
		_ = h.TakeSnapshot(ctx, "g", domain.Snapshot{Name: "r", Memory: true}) // may be there already
		return h.RevertSnapshot(ctx, "g", "r")
	},
	"DeleteSnapshot": func(ctx context.Context, h *memory.Hypervisor) error { return h.DeleteSnapshot(ctx, "g", "s") },
	"OpenConsole": func(ctx context.Context, h *memory.Hypervisor) error {
		c, err := h.OpenConsole(ctx, "g", "")
		if err == nil {
			err = c.Close()
		}
		return err
	},
	"MemoryModel": func(ctx context.Context, h *memory.Hypervisor) error {
		_, err := h.MemoryModel(ctx, "x86_64")
		return err
	},
}

func TestFaults_EveryCall(t *testing.T) {
	broken := errors.New("broken on purpose")
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			h := running(t)
			h.SetGuestInfo("g", &guestagent.Info{})
			remove := h.Inject(memory.Fault{Call: name, Times: 1, Err: broken})
			if err := call(t.Context(), h); !errors.Is(err, broken) {
				t.Errorf("error is %v", err)
			}
			remove()
			remove = h.Inject(memory.Fault{Call: name, Hang: true})
			ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
			defer cancel()
			if err := call(ctx, h); !errors.Is(err, domain.ErrTimeout) {
				t.Errorf("a call that hangs: %v", err)
			}
			remove()
			h.Disconnect()
			if err := call(t.Context(), h); !errors.Is(err, domain.ErrDisconnected) {
				t.Errorf("without a connection: %v", err)
			}
			h.Reconnect()
			if err := call(t.Context(), h); err != nil {
				t.Errorf("without a fault: %v", err)
			}
			if n := h.Calls(name); n < 4 {
				t.Errorf("%d calls were counted", n)
			}
		})
	}
}

func TestGuests_Scripted(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(*memory.Hypervisor) bool
		status domain.Status
		reason domain.Reason
	}{
		"power off":   {func(h *memory.Hypervisor) bool { return h.PowerOff("g") }, domain.StatusShutoff, domain.ReasonShutdown},
		"crash":       {func(h *memory.Hypervisor) bool { return h.Crash("g") }, domain.StatusShutoff, domain.ReasonCrashed},
		"panic":       {func(h *memory.Hypervisor) bool { return h.Panic("g") }, domain.StatusCrashed, domain.ReasonPanicked},
		"I/O error":   {func(h *memory.Hypervisor) bool { return h.IOError("g") }, domain.StatusPaused, domain.ReasonIOError},
		"forced":      {func(h *memory.Hypervisor) bool { return h.SetState("g", domain.StatusPMSuspended, "") }, domain.StatusPMSuspended, ""},
		"new console": {func(h *memory.Hypervisor) bool { return h.Print("g", "login: ") }, domain.StatusRunning, domain.ReasonUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			h := running(t)
			if !tc.do(h) {
				t.Fatal("there is no such guest")
			}
			s, err := h.Get(t.Context(), "g")
			if err != nil || s.Status != tc.status || s.Reason != tc.reason {
				t.Errorf("guest is %s/%s, %v", s.Status, s.Reason, err)
			}
			h.Vanish("g")
			if tc.do(h) {
				t.Error("a guest that is gone did it")
			}
		})
	}
}

func TestAgent_ReportsGivenInfo(t *testing.T) {
	h := running(t)
	want := guestagent.Info{
		AgentVersion: "1.0", Commands: []string{"guest-ping"}, Interfaces: []guestagent.Interface{{Name: "eth0", IPs: []string{"192.0.2.7"}}},
		Filesystems: []guestagent.Filesystem{{Name: "vda1", Disks: []string{"vda"}}},
	}
	if !h.SetGuestInfo("g", &want) || h.SetGuestInfo("nobody", &want) {
		t.Error("agents are given to guests")
	}
	got, err := h.GuestInfo(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
	got.Interfaces[0].IPs[0], got.Filesystems[0].Disks[0] = "changed", "changed"
	if again, err := h.GuestInfo(t.Context(), "g"); err != nil || cmp.Diff(want, again) != "" {
		t.Errorf("what was returned is shared: %+v, %v", again, err)
	}
	h.OnAgentCommand(func(name, command string) (string, error) { return name + command, nil })
	if answer, err := h.AgentCommand(t.Context(), "g", `{"execute":"guest-dance"}`); err != nil || answer != `g{"execute":"guest-dance"}` {
		t.Errorf("answer is %s, %v", answer, err)
	}
	h.SetGuestInfo("g", nil)
	if _, err := h.GuestInfo(t.Context(), "g"); !errors.Is(err, domain.ErrNoAgent) {
		t.Errorf("error is %v, want ErrNoAgent", err)
	}
}

func TestReset_ThawsAndCounts(t *testing.T) {
	h := running(t)
	h.SetGuestInfo("g", &guestagent.Info{})
	if err := h.Freeze(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	for _, op := range []domain.Operation{{Verb: domain.Reset}, {Verb: domain.Reboot}, {Verb: domain.Reboot, Agent: true}} {
		op.Domain = "g"
		if err := h.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := h.GuestInfo(t.Context(), "g"); err != nil || info.Frozen || h.Reboots("g") != 3 || h.Reboots("nobody") != 0 {
		t.Errorf("guest is %+v after %d reboots, %v", info, h.Reboots("g"), err)
	}
	h.IgnoreShutdown("g", true)
	if err := h.Apply(t.Context(), domain.Operation{Verb: domain.Reboot, Domain: "g"}); err != nil || h.Reboots("g") != 3 {
		t.Errorf("a deaf guest rebooted: %d, %v", h.Reboots("g"), err)
	}
}

func TestResizeDisk_GrowsWithDevice(t *testing.T) {
	h := running(t, func(d *libvirtxml.Domain) {
		d.Devices.Disks = []libvirtxml.DomainDisk{{
			Device: "disk", Alias: alias("root"), Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
			Source: &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: "/dev/root"}},
		}}
	})
	capacity := func() uint64 {
		all, err := h.Stats(t.Context())
		if err != nil || len(all) != 1 || len(all[0].Disks) != 1 || all[0].Disks[0].Alias != "ua-root" || all[0].Disks[0].Target != "vda" {
			t.Fatalf("statistics are %+v, %v", all, err)
		}
		return all[0].Disks[0].Capacity
	}
	resize := domain.Operation{Verb: domain.ResizeDisk, Domain: "g", Disk: "ua-root"}
	if err := h.Apply(t.Context(), resize); err != nil || capacity() != 1<<30 {
		t.Errorf("capacity is %d, %v", capacity(), err)
	}
	if !h.GrowDevice("g", "ua-root", 5<<30) || h.GrowDevice("g", "ua-nothing", 1) || h.GrowDevice("nobody", "ua-root", 1) {
		t.Error("devices lie behind disks")
	}
	if err := h.Apply(t.Context(), resize); err != nil || capacity() != 5<<30 {
		t.Errorf("capacity is %d, %v", capacity(), err)
	}
}

func TestStats_AsSet(t *testing.T) {
	h := running(t)
	h.SetStats("g", stats.Domain{CPUTime: time.Second, Disks: []stats.Disk{{Target: "vda", ReadBytes: 7}}})
	all, err := h.Stats(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "g" || all[0].CPUTime != time.Second || all[0].Disks[0].ReadBytes != 7 {
		t.Errorf("statistics are %+v, %v", all, err)
	}
	if all[0].Memory.Current != 64<<20 || len(all[0].VCPUs) != 1 {
		t.Errorf("statistics are %+v", all[0])
	}
}

func TestConsole_GuestOutput(t *testing.T) {
	h := running(t)
	h.Print("g", "nobody listens")
	c, err := h.OpenConsole(t.Context(), "g", "")
	if err != nil {
		t.Fatal(err)
	}
	h.Print("g", "login: ")
	if _, err := c.Write([]byte("root\n")); err != nil {
		t.Fatal(err)
	}
	h.PowerOff("g")
	if said, err := io.ReadAll(c); err != nil || string(said) != "login: root\n" {
		t.Errorf("the console said %q, %v", said, err)
	}
	if _, err := h.OpenConsole(t.Context(), "g", ""); !errors.Is(err, domain.ErrInvalidState) {
		t.Errorf("console of a guest that ended: %v", err)
	}
}
