package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/warmfleet/warmfleet/pkg/plan"
)

// source reads a file that the command line names, noun and name say which: a regular file, or a pipe, which may have no writer yet. It
// reads plan.SourceLimit bytes at most, and no longer than ctx.
func source(ctx context.Context, noun, name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, usagef("%s %s: %w", noun, name, bare(err))
	case info.IsDir():
		hint := ""
		if noun == planFile {
			hint = ", and the directory with --path"
		}
		return nil, usagef("%s %s: is a directory: name the file%s", noun, name, hint)
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeNamedPipe:
		return nil, usagef("%s %s: is neither a file nor a pipe", noun, name)
	}
	return sourceText(ctx, noun+" "+name, func() (io.ReadCloser, error) { return os.Open(name) })
}

// stdinText is sourceText of what this command is given.
func (a *app) stdinText(ctx context.Context, what string) ([]byte, error) {
	return sourceText(ctx, what, func() (io.ReadCloser, error) { return io.NopCloser(a.stdin), nil })
}

// sourceText reads what open returns. Neither opening nor reading holds up the end of ctx: a pipe that nobody writes to holds both.
func sourceText(ctx context.Context, what string, open func() (io.ReadCloser, error)) ([]byte, error) {
	type text struct {
		b   []byte
		err error
	}
	got := make(chan text, 1)
	go func() {
		b, err := readBounded(open)
		got <- text{b, err}
	}()
	select {
	case t := <-got:
		if t.err != nil {
			return nil, usagef("%s: %w", what, bare(t.err))
		}
		return t.b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func readBounded(open func() (io.ReadCloser, error)) ([]byte, error) {
	f, err := open()
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, plan.SourceLimit+1))
	if err == nil && len(b) > plan.SourceLimit {
		err = fmt.Errorf("has more than %d bytes, which are the most that are read", plan.SourceLimit)
	}
	return b, errors.Join(err, f.Close())
}

// bare takes operation and path, which the caller names better, from a file error.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
