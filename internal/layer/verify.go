package layer

import (
	"context"
	"fmt"
	"io"
)

// Verify reads a stored layer whole, within the limits, without keeping any of it: r must be one sound archive
// whose tar has the digest in name. It returns what it found out about it, ErrCorrupt or ErrLimit for what is wrong with
// the content, and errors of r as they are.
func Verify(ctx context.Context, name string, r io.Reader, limits Limits) (Packed, error) {
	if _, err := digestOfName(name); err != nil {
		return Packed{}, fmt.Errorf("layer: verify %q: %w", name, err)
	}
	skip := func(_ *tarEntry, data io.Reader) error {
		_, err := io.Copy(io.Discard, data)
		return err
	}
	sums, err := readTar(ctx, tarInput{Name: name, R: r, Limits: limits}, skip)
	if err != nil {
		return Packed{}, fmt.Errorf("layer: verify %q: %w", name, err)
	}
	return Packed{
		Name: name, DiffID: digestPrefix + sums.tar, Digest: digestPrefix + sums.packed, TarSize: sums.tarSize, Size: sums.packedSize,
	}, nil
}

// IsStoredName tells whether name is that of a stored layer.
func IsStoredName(name string) bool {
	_, err := digestOfName(name)
	return err == nil
}
