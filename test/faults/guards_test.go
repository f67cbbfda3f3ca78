//go:build fault

package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/warmfleet/warmfleet/test/fleettest"
)

// control is a guard of the product and the smallest test that goes red without it.
type control struct {
	guard, pkg, test string
	rootOnly         bool // an ordinary user has nothing that it guards
}

// root is the directory of the module.
const root = "../.."

var controls = []control{
	{guard: "layer.alias-fix", pkg: "internal/layer", test: "TestDrivers/OverlayRoot/Freeze/WriteLinked", rootOnly: true},
	{guard: "layer.redirect", pkg: "internal/layer", test: "TestDrivers/OverlayRoot/Freeze/RenameDir", rootOnly: true},
	{guard: "layer.opaque", pkg: "internal/layer", test: "TestCache_Capture/FileBecomesDir"},
	{guard: "layer.racy", pkg: "internal/layer", test: "TestCache_CaptureReadsRacyFilesAgain"},
	{guard: "layer.journal-dir", pkg: "internal/layer", test: "TestCache_Capture/Journal"},
	{guard: "layer.unpack-digest", pkg: "internal/layer", test: "TestCache_UnpackUnderAnotherName"},
	{guard: "layer.unpack-whiteout", pkg: "internal/layer", test: "TestCache_PackUnpackRoundTrip"},
	{guard: "layer.unpack-parents", pkg: "internal/layer", test: "TestCache_UnpackRefusesHostileArchives"},
	{guard: "layer.exact-mirror", pkg: "internal/layer", test: "TestCache_RestoreMirrors/Extras"},
	{guard: "layer.no-follow", pkg: "internal/layer", test: "TestFolder_OpensNoLink"},
	{guard: "layer.overlay-xattrs", pkg: "internal/layer", test: "TestDrivers/OverlayUser/Freeze/RecreateDir"},
	{guard: "layer.decode-compare", pkg: "internal/layer", test: "TestCompress_ReadsBackWhatItWrote"},
	{guard: "checkpoint.layers-first", pkg: "pkg/checkpoint", test: "TestStore_KilledAnywhere"},
	{guard: "checkpoint.named-again", pkg: "pkg/checkpoint", test: "TestCollect_AroundAWriter"},
	{guard: "checkpoint.spare", pkg: "pkg/checkpoint", test: "TestCollect_EachPointBesideEachPoint"},
	{guard: "checkpoint.server-clock", pkg: "pkg/checkpoint", test: "TestCollect_GraceByTheServersClock"},
	{guard: "events.fence", pkg: "pkg/events", test: "TestJetStreamLog/Fence"},
	{guard: "events.epoch", pkg: "pkg/events", test: "TestWriter_ClaimAndFence"},
	{guard: "store.digest", pkg: "pkg/objectstore", test: "TestJetStream_Corrupt/ByteFlipped"},
	{guard: "store.record-guard", pkg: "pkg/objectstore", test: "TestJetStream_ChunksLostBeforeRecord"},
	{guard: "store.count", pkg: "pkg/objectstore", test: "TestJetStream_StreamLostDuringPut"},
	{guard: "applier.three-way", pkg: "pkg/plan/applier", test: "TestSession_Apply/BothEdited"},
	{guard: "applier.displaced", pkg: "pkg/plan/applier", test: "TestSession_CommitLateConflict/Edited"},
	{guard: "applier.journal", pkg: "pkg/plan/applier", test: "TestSession_RecoverAfterEdits"},
	{guard: "applier.own-journal", pkg: "pkg/plan/applier", test: "TestOpen_CopiedJournal"},
	{guard: "applier.journal-digest", pkg: "pkg/plan/applier", test: "TestOpen_DamagedJournal/Changed"},
	{guard: "applier.no-symlinks", pkg: "pkg/plan/applier", test: "TestSession_Apply/ParentIsLink"},
	{guard: "applier.content-digest", pkg: "pkg/plan/applier", test: "TestSession_WrongContent"},
	{guard: "applier.special", pkg: "pkg/plan/applier", test: "TestSession_Special", rootOnly: true},
	{guard: "applier.lock", pkg: "pkg/plan/applier", test: "TestOpen_LockWaitEnds"},
	{guard: "worker.in-place-marker", pkg: "internal/worker", test: "TestWorker_LostInPlace/Cancelled"},
}

// TestGuards_AreMissed leaves out one guard at a time. The test that is named for it passes with the guard and fails
// without it.
func TestGuards_AreMissed(t *testing.T) {
	dir := t.TempDir()
	build := map[string]func() error{}
	for _, c := range controls {
		build[c.pkg] = sync.OnceValue(func() error {
			cmd := exec.Command("go", "test", "-c", "-tags", "fault", "-o", program(dir, c.pkg), "./"+c.pkg)
			cmd.Dir, cmd.Stderr = root, os.Stderr
			return cmd.Run()
		})
	}
	for _, c := range controls {
		t.Run(c.guard, func(t *testing.T) {
			t.Parallel()
			if c.rootOnly && os.Getuid() != 0 {
				t.Skip("only root has what this guards")
			}
			fleettest.Must(t, build[c.pkg]())
			if out, err := c.run(dir, ""); err != nil || !strings.Contains(out, "--- PASS: "+c.test) {
				t.Fatalf("%s does not pass with every guard in place: %v\n%s", c.test, err, fleettest.Tail(out, 3000))
			}
			out, err := c.run(dir, c.guard)
			if err == nil || !strings.Contains(out, "--- FAIL: ") || strings.Contains(out, "panic: ") {
				t.Errorf("%s does not notice that %s is left out: %v\n%s", c.test, c.guard, err, fleettest.Tail(out, 3000))
			}
		})
	}
}

func program(dir, pkg string) string {
	return filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-")+".test")
}

// run runs the control's test with a guard left out, "" for none.
func (c control) run(dir, broken string) (string, error) {
	var pattern []string
	for part := range strings.SplitSeq(c.test, "/") {
		pattern = append(pattern, "^"+part+"$")
	}
	cmd := exec.Command(program(dir, c.pkg), "-test.v", "-test.timeout", "2m", "-test.run", strings.Join(pattern, "/"))
	cmd.Dir = filepath.Join(root, c.pkg)
	cmd.Env = append(os.Environ(), "WARMFLEET_BROKEN="+broken)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestGuards_AreAllListed finds guards in the source that no control leaves out, and controls of guards that are gone.
func TestGuards_AreAllListed(t *testing.T) {
	var got []string
	for _, dir := range []string{"internal", "pkg", "cmd"} {
		fleettest.Must(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range regexp.MustCompile(`fault\.Off\("([^"]+)"\)`).FindAllStringSubmatch(string(b), -1) {
				got = append(got, m[1])
			}
			return err
		}))
	}
	var want []string
	for _, c := range controls {
		want = append(want, c.guard)
	}
	slices.Sort(got)
	slices.Sort(want)
	if got := slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("guards in the source: %v\nin controls: %v", got, want)
	}
}
