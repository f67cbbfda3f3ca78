package worker

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// uploader is a session of which only the parts of files are used.
func uploader(t *testing.T) *liveSession {
	t.Helper()
	state := t.TempDir()
	if err := os.Mkdir(filepath.Join(state, "scratch"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := newLiveSession(&Worker{cfg: Config{StateDir: state}}, events.NewID())
	t.Cleanup(func() {
		for id := range s.uploads {
			s.dropUpload(id)
		}
	})
	s.gate.Open()
	return s
}

// What is refused takes no place, and one that stopped gives its place up.
func TestLiveSession_UploadsFreeTheirPlaces(t *testing.T) {
	s := uploader(t)
	for range 2 * maxUploads {
		for _, at := range []int64{-1, 5} {
			req := api.SessionWrite{Path: "a", Upload: events.NewID(), Offset: at, Data: []byte("x")}
			if _, _, err := s.collect(req); !errors.Is(err, errPart) {
				t.Errorf("a first part at %d: got %v, want it refused", at, err)
			}
		}
	}
	begin := func() error {
		_, _, err := s.collect(api.SessionWrite{Path: "a", Upload: events.NewID(), Data: []byte("x")})
		return err
	}
	for range maxUploads {
		if err := begin(); err != nil {
			t.Fatal(err)
		}
	}
	if err := begin(); !errors.Is(err, errUploads) {
		t.Errorf("one more than %d: got %v, want %v", maxUploads, err, errUploads)
	}
	for _, u := range s.uploads {
		u.at = u.at.Add(-uploadIdle - time.Second)
	}
	s.dropIdleUploads()
	if got := len(s.uploads); got != 0 {
		t.Errorf("after %s: got %d uploads, want none", uploadIdle, got)
	}
}

// Of two writers of one upload the first gets what it wrote, and the other one is told.
func TestLiveSession_TwoWritersOfAnUpload(t *testing.T) {
	s := uploader(t)
	id := events.NewID()
	part := func(path, data string, at int64, last bool) (*os.File, error) {
		whole, _, err := s.collect(api.SessionWrite{Path: path, Upload: id, Data: []byte(data), Offset: at, Last: last})
		return whole, err
	}
	for _, data := range []string{"first ", "first "} { // a repeated part is kept once
		if _, err := part("a", data, 0, false); err != nil {
			t.Fatal(err)
		}
	}
	for name, refused := range map[string]api.SessionWrite{
		"OtherPath":      {Path: "b", Data: []byte("wrong"), Offset: 6},
		"OtherBytes":     {Path: "a", Data: []byte("wrong"), Offset: 0},
		"Overlapping":    {Path: "a", Data: []byte("t wrong"), Offset: 4},
		"Gap":            {Path: "a", Data: []byte("wrong"), Offset: 7},
		"Negative":       {Path: "a", Data: []byte("wrong"), Offset: -1},
		"EndsBeforeSize": {Path: "a", Data: []byte("fir"), Offset: 0, Last: true},
	} {
		if _, err := part(refused.Path, string(refused.Data), refused.Offset, refused.Last); !errors.Is(err, errPart) {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
	whole, err := part("a", "last", 6, true)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	got, err := io.ReadAll(io.NewSectionReader(whole, 0, 1<<10))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), "first last"); diff != "" {
		t.Errorf("the file (- got, + want):\n%s", diff)
	}
}
