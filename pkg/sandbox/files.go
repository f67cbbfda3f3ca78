package sandbox

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// ReadFile reads at most limit bytes of a file of the workspace; a larger file is an error.
func (s *Sandbox) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	in, err := s.live()
	if err != nil {
		return nil, 0, err
	}
	return in.ReadFile(ctx, path, limit)
}

// WriteFile replaces a file of the workspace whole, making its parents.
func (s *Sandbox) WriteFile(ctx context.Context, w isolate.FileWrite) error {
	in, err := s.live()
	if err != nil {
		return err
	}
	size := int64(len(w.Content))
	if w.From != nil {
		if size, err = sizeLeft(w.From); err != nil {
			return fmt.Errorf("sandbox: write %q: %w", w.Path, err)
		}
	}
	if err := s.RoomFor(w.Path, size); err != nil {
		return err
	}
	if err := in.WriteFile(ctx, w); err != nil {
		return err
	}
	s.wrote(size)
	return nil
}

// LookAt reads a file or the text of a link; see isolate.Init.LookAt.
func (s *Sandbox) LookAt(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	in, err := s.live()
	if err != nil {
		return nil, 0, err
	}
	return in.LookAt(ctx, path, limit)
}

// ChangeFiles makes several changes of files, all or none; see isolate.Init.ChangeFiles.
func (s *Sandbox) ChangeFiles(ctx context.Context, list []isolate.FileChange) error {
	in, err := s.live()
	if err != nil {
		return err
	}
	var size int64
	for _, c := range list {
		size += int64(len(c.Content))
	}
	if len(list) > 0 && size > 0 {
		if err := s.RoomFor(list[0].Path, size); err != nil {
			return err
		}
	}
	if err := in.ChangeFiles(ctx, list); err != nil {
		return err
	}
	s.wrote(size)
	return nil
}

// ReadPart reads a part of a file; see isolate.Init.ReadPart.
func (s *Sandbox) ReadPart(ctx context.Context, path string, at isolate.PartAt) (isolate.FilePart, error) {
	in, err := s.live()
	if err != nil {
		return isolate.FilePart{}, err
	}
	return in.ReadPart(ctx, path, at)
}

// List describes the entries of a directory; see isolate.Init.List.
func (s *Sandbox) List(ctx context.Context, path string) ([]isolate.FileInfo, error) {
	in, err := s.live()
	if err != nil {
		return nil, err
	}
	return in.List(ctx, path)
}
