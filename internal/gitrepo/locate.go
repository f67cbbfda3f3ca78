package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Locate is Inspect without looking at the work tree's files: Modified and Untracked stay 0,
// and its cost does not grow with the tree. In the usual case it runs no program, since it
// lies on the way of every plan.
func (s *Store) Locate(ctx context.Context, path string) (Info, error) {
	info, err := locate(path)
	if err != nil || info.Kind == KindNone || info.Kind == KindGitDir {
		return info, err
	}
	if readHead(&info) {
		return info, nil
	}
	if err := s.git.inspectHead(ctx, &info); err != nil {
		return info, fmt.Errorf("gitrepo: locate %q: %w", path, err)
	}
	return info, nil
}

// readHead reads HEAD, a loose ref or packed-refs as gitrepository-layout(5) has them. It is
// false for anything else, such as reftable or an unborn branch: git itself is asked then.
func readHead(info *Info) bool {
	head, err := os.ReadFile(filepath.Join(info.GitDir, "HEAD"))
	if err != nil {
		return false
	}
	text := strings.TrimSpace(string(head))
	ref, symbolic := strings.CutPrefix(text, "ref: ")
	if !symbolic {
		info.Head, info.Detached = text, true
		return isObjectID(text)
	}
	branch, ok := strings.CutPrefix(ref, "refs/heads/")
	if !ok || strings.Contains(ref, "..") {
		return false
	}
	commit := looseRef(info.CommonDir, ref)
	if commit == "" {
		commit = packedRef(info.CommonDir, ref)
	}
	if commit == "" {
		return false
	}
	info.Head, info.Branch = commit, branch
	return true
}

func looseRef(common, ref string) string {
	b, err := os.ReadFile(filepath.Join(common, filepath.FromSlash(ref)))
	if err != nil {
		return ""
	}
	if id := strings.TrimSpace(string(b)); isObjectID(id) {
		return id
	}
	return ""
}

func packedRef(common, ref string) string {
	b, err := os.ReadFile(filepath.Join(common, "packed-refs"))
	if err != nil {
		return ""
	}
	return packedIn(b, ref)
}

// packedIn finds a ref in the content of packed-refs, "" where it is not there.
func packedIn(b []byte, ref string) string {
	for line := range bytes.Lines(b) {
		id, name, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		if ok && name == ref && isObjectID(id) {
			return id
		}
	}
	return ""
}

// isObjectID tells whether s is a whole SHA-1 or SHA-256 object id.
func isObjectID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}
