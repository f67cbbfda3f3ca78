package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// ErrFileSize is a file that is larger than the caller reads.
var ErrFileSize = errors.New("gitrepo: file is too large")

// FileAt reads a file of a tip that Sync found, at most limit bytes, without asking the remote again. Links are followed
// within the tree. Errors: fs.ErrNotExist where there is no regular file, ErrFileSize, ErrURL.
func (s *Store) FileAt(ctx context.Context, r Remote, t Tip, path string, limit int64) ([]byte, error) {
	rem, err := parseRemote(r.URL)
	if err != nil {
		return nil, err
	}
	if !fs.ValidPath(path) || strings.Contains(path, "\n") { // git reads one name a line
		return nil, &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	b, err := s.git.fileAt(ctx, s.mirrorDir(rem), t.Commit+":"+path, limit)
	if err != nil {
		return nil, fmt.Errorf("gitrepo: read %q at %s: %w", path, t.Commit, err)
	}
	return b, nil
}

func (g Git) fileAt(ctx context.Context, gitDir, name string, limit int64) ([]byte, error) {
	out, err := g.Output(ctx, Call{GitDir: gitDir, Args: []string{"cat-file", "--batch-check", "--follow-symlinks"}, Stdin: strings.NewReader(name + "\n")})
	if err != nil {
		return nil, err
	}
	// "<object> blob <bytes>"; else it is missing, no file, or a link that leads nowhere or outside.
	fields := strings.Fields(string(bytes.SplitN(out, []byte("\n"), 2)[0]))
	if len(fields) != 3 || fields[1] != "blob" || !isObjectID(fields[0]) {
		return nil, fs.ErrNotExist
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	if err == nil && size > limit {
		err = fmt.Errorf("%w: it has %d bytes, at most %d are read", ErrFileSize, size, limit)
	}
	if err != nil {
		return nil, err
	}
	return g.Output(ctx, Call{GitDir: gitDir, Args: []string{"cat-file", "blob", fields[0]}})
}
