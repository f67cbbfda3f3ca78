package fleettest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// LayersState is what the object store's stream holds: messages of chunks by object, and all bytes.
func (c *Cluster) LayersState(t testing.TB) jetstream.StreamState {
	t.Helper()
	s, err := c.Fleet.JetStream.Stream(t.Context(), "OBJ_"+c.Fleet.Subjects.LayersBucket())
	Must(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("$O."+c.Fleet.Subjects.LayersBucket()+".C.>"))
	Must(t, err)
	return info.State
}

// Messages are those of all streams, with subjects and headers, but of layers, which are looked at as checkpoints, and of queues, whose
// messages are taken.
func (c *Cluster) Messages(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	streams := c.Fleet.JetStream.ListStreams(t.Context())
	for info := range streams.Info() {
		if strings.HasPrefix(info.Config.Name, "OBJ_") || info.Config.Retention == jetstream.WorkQueuePolicy {
			continue
		}
		stream, err := c.Fleet.JetStream.Stream(t.Context(), info.Config.Name)
		Must(t, err)
		for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
			if m, err := stream.GetMsg(t.Context(), seq); err == nil {
				fmt.Fprintln(&all, m.Subject, m.Header, string(m.Data))
			}
		}
	}
	Must(t, streams.Err())
	if !strings.Contains(all.String(), events.TypeClaimed) {
		t.Error("no event could be looked at")
	}
	return all.String()
}

// Collect runs `warmfleet gc` without a grace.
func (c *Cluster) Collect(t testing.TB) api.Collected {
	t.Helper()
	var done api.Collected
	Must(t, json.Unmarshal([]byte(c.Do(t, "warmfleet", "gc", "--grace", "0s", "-o", "json")), &done))
	return done
}

// Exact fails the test unless the store holds what the listed checkpoints name, whole, and nothing else.
func (c *Cluster) Exact(t testing.TB) {
	t.Helper()
	records, err := checkpoint.All(t.Context(), c.Fleet.Checkpoints)
	Must(t, err)
	want := map[string]bool{}
	for _, cp := range records {
		for _, ref := range append(append([]checkpoint.LayerRef{}, cp.Base...), cp.Layers...) {
			want[ref.Name] = true
		}
		if cp.Delta != "" {
			want[cp.Delta] = true
		}
	}
	objects, err := c.Fleet.Store.List(t.Context())
	Must(t, err)
	for _, o := range objects {
		if !want[o.Name] {
			t.Errorf("no checkpoint names the object %s", o.Name)
		}
		delete(want, o.Name)
	}
	for name := range want {
		t.Errorf("checkpoints name %s, which is not there", name)
	}
	if got := len(c.LayersState(t).Subjects); got != len(objects) {
		t.Errorf("the store holds chunks of %d objects, has %d", got, len(objects))
	}
	if r := c.Warmfleet(t, "verify", "--read-data-subset", "1/1"); r.Code != 0 {
		t.Errorf("verify: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// Export unpacks a checkpoint's tree with the tar program into a new directory.
func (c *Cluster) Export(t testing.TB, id string) string {
	t.Helper()
	dir, err := os.MkdirTemp(c.Path("work"), "export-")
	Must(t, err)
	Must(t, os.Chmod(dir, 0o755))
	c.Own(t, dir)
	c.Sh(t, dir, "warmfleet checkpoint export "+id+" >../"+filepath.Base(dir)+".tar; tar --xattrs -xpSf ../"+filepath.Base(dir)+".tar")
	return dir
}

// RandomScript is a step that writes a file of so many bytes and its digest.
func RandomScript(size int) string {
	return fmt.Sprintf("head -c %d /dev/urandom >f; sha256sum <f | cut -c1-64 >sum", size)
}
