package sandbox

import (
	"context"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

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
