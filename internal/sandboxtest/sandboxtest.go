// Package sandboxtest gives tests a worker's insides on real parts: a layer cache, a mounter, inits,
// and sandboxes on a directory. Nothing but tests imports it.
//
// The TestMain of a package that uses it must call isolate.Main first.
package sandboxtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/disk"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/limit"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// Bed is one worker's insides. Store and Records may be shared by several beds.
type Bed struct {
	Host    sandbox.Host
	Manager *checkpoint.Manager
	Store   objectstore.Store
	Records kv.Store
}

// New returns a bed with a store of its own.
func New(t *testing.T) *Bed {
	t.Helper()
	return Beside(t, &Bed{Store: objectstore.NewMemory(), Records: kv.NewMemory()})
}

// On returns a bed with a store of its own, on the first of the rungs that works.
func On(t *testing.T, rungs ...isolate.Rung) *Bed {
	t.Helper()
	return besideOn(t, &Bed{Store: objectstore.NewMemory(), Records: kv.NewMemory()}, rungs)
}

// Beside returns another worker's bed on the store and records of the first.
func Beside(t *testing.T, first *Bed) *Bed {
	t.Helper()
	b := besideOn(t, first, isolate.Rungs())
	if len(b.Host.Report.Unmet(isolate.NetworkNone)) > 0 {
		t.Fatalf("this machine does not isolate: %+v", b.Host.Report)
	}
	return b
}

func besideOn(t *testing.T, first *Bed, rungs []isolate.Rung) *Bed {
	t.Helper()
	dir := t.TempDir()
	report, err := isolate.ProbeOf(t.Context(), dir, rungs...)
	if err != nil {
		t.Fatal(err)
	}
	var mounter isolate.Mounter
	if report.Rung.Mounts() {
		if mounter, err = isolate.NewMounter(report.Rung); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mounter.Close() })
	}
	owner := report.Rung.Owner()
	root := owner == isolate.HostID
	t.Cleanup(func() { // before TempDir's own cleanup, which directories without permissions would stop
		if err := layer.RemoveTree(filepath.Join(dir, "layers")); err != nil {
			t.Error(err)
		}
	})
	cache, err := layer.OpenCache(filepath.Join(dir, "layers"), layer.Options{Owner: owner, Trusted: root, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	layers, err := cache.Choose("", report.OverlayWhy)
	if err != nil {
		t.Fatal(err)
	}
	groups := limit.Open(limit.Auto)
	groups.Describe(&report)
	t.Cleanup(func() {
		if err := groups.Close(); err != nil {
			t.Error(err)
		}
	})
	disks, err := disk.Open(t.Context(), dir)
	if err != nil && !errors.Is(err, disk.ErrAbsent) {
		t.Fatal(err)
	}
	return &Bed{
		Store: first.Store, Records: first.Records,
		Host: sandbox.Host{
			Cache: cache, Mounter: mounter, Report: report, Layers: layers, Disks: disks,
			Init: func(ctx context.Context, network string, noSetuid bool) (*isolate.Init, error) {
				group, err := groups.New()
				if err != nil {
					return nil, err
				}
				return isolate.Start(ctx, isolate.Config{Rung: report.Rung, Network: network, NoSetuid: noSetuid && root, Group: group, Within: filepath.Dir(dir)})
			},
		},
		Manager: checkpoint.New(checkpoint.Config{
			Cache: cache, Store: first.Store, Records: first.Records, Scratch: dir, Worker: "bed", Log: zerolog.Nop(), NewID: events.NewID,
		}),
	}
}

// Base captures a directory as a chain of one layer.
func (b *Bed) Base(t *testing.T, dir string) (layer.Chain, *layer.Index) {
	t.Helper()
	l, idx, _, err := b.Host.Cache.Capture(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return layer.Chain{l}, idx
}

// Sandbox makes a sandbox on a chain; it is cleaned up with the test.
func (b *Bed) Sandbox(t *testing.T, chain layer.Chain) *sandbox.Sandbox {
	t.Helper()
	s, err := sandbox.New(t.Context(), b.Host, sandbox.Spec{ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: chain, Network: isolate.NetworkNone})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Run runs a shell script in a sandbox and fails the test unless it succeeds.
func Run(t *testing.T, s *sandbox.Sandbox, script string) string {
	t.Helper()
	var out safeBuffer
	res, err := s.Exec(t.Context(), isolate.Command{Argv: []string{"/bin/sh", "-euc", script}, Env: s.BaseEnv(), Stdout: &out, Stderr: &out})
	if err != nil || res.ExitCode == nil || *res.ExitCode != 0 {
		t.Fatalf("%s: %+v, %v\n%s", script, res, err, out.String())
	}
	return out.String()
}

// Write makes files with their contents below dir, parents included.
func Write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
