package layer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/internal/layer/modeltest"
)

func TestMain(m *testing.M) {
	modeltest.Main()
	os.Exit(layertest.Main(m, layertest.RunStep))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// scratch is a directory that is removed whatever its modes.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "layer")
	must(t, err)
	t.Cleanup(func() { must(t, RemoveTree(dir)) })
	return dir
}

func take(t testing.TB, dir string) layertest.Snapshot {
	t.Helper()
	s, err := layertest.Take(dir)
	must(t, err)
	return s
}

func sameSnapshot(t testing.TB, what string, got, want layertest.Snapshot, o layertest.Options) {
	t.Helper()
	if d := layertest.Diff(got, want, o); d != "" {
		t.Fatalf("%s (-got +want):\n%s", what, d)
	}
}

// testOptions are those of whoever runs the tests.
func testOptions(t testing.TB) Options {
	t.Helper()
	return Options{Owner: os.Getuid(), Trusted: os.Getuid() == 0, Log: zerolog.New(zerolog.NewTestWriter(t))}
}

func openTestCache(t testing.TB, o Options) *Cache {
	t.Helper()
	return cacheIn(t, scratch(t), o)
}

func cacheIn(t testing.TB, dir string, o Options) *Cache {
	t.Helper()
	c, err := OpenCache(filepath.Join(dir, "cache"), o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// inOverlay runs a step in an overlay view.
func inOverlay(t *testing.T, o Options, m Mount, step string) layertest.Snapshot {
	t.Helper()
	return layertest.InOverlay(t, layertest.Overlay{Lowers: m.Lowers, Upper: m.Upper, Work: m.Work, Trusted: o.Trusted}, step)
}

func write(dir, name, content string) error { return layertest.Write(dir, name, content) }

func seed(t testing.TB, dir string) {
	t.Helper()
	layertest.Seed(t, dir)
}
