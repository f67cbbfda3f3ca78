package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/statedir"
)

const (
	defaultTimeout = 15 * time.Second
	// remoteProtocols are what a plan's URL may use; ext and unknown helpers run programs.
	remoteProtocols = "file:git:http:https:ssh"
	// maxPacks is how many packs a mirror may have before they are joined.
	maxPacks = 50
	// leftAfter is the age at which a temporary file of git belongs to nobody any more.
	leftAfter = time.Hour
	// keptPrefix holds what was fetched, one flat name per ref of the remote: a branch a/b that follows
	// a deleted branch a would not fit beside it under its own name.
	keptPrefix = "refs/fleet/"
)

var fullHash = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// Mirror is a bare repository on this worker that has a ref of a remote.
type Mirror struct {
	Dir    string
	Ref    string // the name in Dir
	Commit string
	Branch string // "" for a tag or a commit
}

// Mirror fetches a ref of a remote into the worker's mirror of it, the remote's HEAD for "". Callers
// that ask for the same at the same time share a fetch, and never one that began before they asked.
func (s *Store) Mirror(ctx context.Context, url, ref string) (Mirror, error) {
	src, err := s.urlSource(ctx, url, ref)
	if err != nil {
		return Mirror{}, err
	}
	return Mirror{Dir: src.gitDir, Ref: keptRef(ref), Commit: src.commit, Branch: src.branch}, nil
}

func keptRef(ref string) string { return keptPrefix + keyOf(ref) }

func (s *Store) urlSource(ctx context.Context, url, ref string) (source, error) {
	r, err := parseRemote(url)
	if err != nil {
		return source{}, err
	}
	if err := checkRef(ref); err != nil {
		return source{}, err
	}
	src, err := s.fetches.Do(ctx, keyOf(r.key(), r.cred.User, r.cred.Password, ref), func(ctx context.Context) (source, error) {
		return s.fetch(ctx, r, ref)
	})
	if err != nil {
		return source{}, fmt.Errorf("gitrepo: fetch %q: %w", r.url, err)
	}
	return src, nil
}

// fetch brings the mirror up to date for one ref, under the mirror's lock.
func (s *Store) fetch(ctx context.Context, r remote, ref string) (source, error) {
	home := filepath.Join(s.opt.Dir, mirrorsDir, r.key())
	if err := os.MkdirAll(home, 0o700); err != nil {
		return source{}, err
	}
	lock, err := statedir.Lock(ctx, filepath.Join(home, lockFile))
	if err != nil {
		return source{}, err
	}
	defer func() { _ = lock.Close() }()
	if err := s.authorize(ctx, &r); err != nil {
		return source{}, err
	}
	f := fetcher{git: s.git, home: home, dir: filepath.Join(home, workshopDir), remote: r, timeout: s.opt.Timeout}
	t, err := f.fetch(ctx, ref)
	if err != nil {
		return source{}, err
	}
	f.tidy(ctx, s)
	src := source{
		tip: t, label: r.url, gitDir: f.dir, objects: filepath.Join(f.dir, "objects"),
		key: keyOf("url", r.url, t.format()),
	}
	if r.local == "" {
		src.remote = r.url
	}
	return src, nil
}

// authorize asks the provider unless the URL came with a credential.
func (s *Store) authorize(ctx context.Context, r *remote) error {
	if r.host == "" || r.cred != (Credential{}) || s.opt.Credential == nil {
		return nil
	}
	cred, err := s.opt.Credential(ctx, r.url)
	if err != nil {
		return fmt.Errorf("get credential: %w", err)
	}
	r.cred = cred
	r.secret = append(r.secret, secretForms(cred)...)
	return nil
}

// fetcher talks to one remote for one mirror.
type fetcher struct {
	git     Git
	home    string
	dir     string // the mirror
	remote  remote
	timeout time.Duration
}

// advertised is what a remote says about one ref.
type advertised struct {
	ref    string // its full name
	hash   string
	branch string
}

func (f fetcher) fetch(ctx context.Context, ref string) (tip, error) {
	// The remote is asked for a known commit too: who has no access must not get it from the mirror.
	adv, err := f.ask(ctx, ref)
	if err != nil {
		return tip{}, err
	}
	if err := skeleton(f.dir, tip{commit: adv.hash}.format()); err != nil {
		return tip{}, err
	}
	if t, err := f.git.firstCommit(ctx, f.dir, adv.hash); err == nil {
		return tip{commit: t.commit, branch: adv.branch}, f.keep(ctx, ref, adv.hash)
	}
	from := adv.ref
	if from == "" {
		from = adv.hash
	}
	err = f.pull(ctx, "+"+from+":"+keptRef(ref))
	if adv.ref == "" && ExitCode(err) > 0 {
		// The remote gives no single commits away: it may be on a branch or tag.
		err = f.pull(ctx, "+refs/heads/*:"+keptPrefix+"all/heads/*", "+refs/tags/*:"+keptPrefix+"all/tags/*")
	}
	if err != nil {
		return tip{}, err
	}
	want := keptRef(ref)
	if adv.ref == "" {
		want = adv.hash
	}
	t, err := f.git.firstCommit(ctx, f.dir, want)
	return tip{commit: t.commit, branch: adv.branch}, err
}

// ask finds the full name and hash of a ref at the remote: HEAD, a full name, a branch, a tag, or the
// full hash of a commit, which has no name.
func (f fetcher) ask(ctx context.Context, ref string) (advertised, error) {
	names := []string{headsPrefix + ref, "refs/tags/" + ref}
	switch {
	case ref == "" || ref == "HEAD" || fullHash.MatchString(ref):
		names = []string{"HEAD"}
	case strings.HasPrefix(ref, "refs/"):
		names = []string{ref}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("no answer within %s", f.timeout))
	defer cancel()
	c := f.call(append([]string{"ls-remote", "--symref", "origin"}, names...)...)
	c.GitDir = filepath.Join(f.home, "ask")
	if err := skeleton(c.GitDir, "sha1"); err != nil {
		return advertised{}, err
	}
	out, err := f.output(ctx, c)
	if err != nil {
		return advertised{}, err
	}
	if fullHash.MatchString(ref) {
		return advertised{hash: ref}, nil
	}
	return pick(string(out), names, ref)
}

// pick reads the output of ls-remote, whose patterns match more than exact names.
func pick(out string, names []string, ref string) (advertised, error) {
	hashes, head := map[string]string{}, ""
	for line := range strings.Lines(out) {
		what, name, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		if target, ok := strings.CutPrefix(what, "ref: "); ok && name == "HEAD" {
			head = target
		} else if fullHash.MatchString(what) {
			hashes[name] = what
		}
	}
	for _, n := range names {
		if hashes[n] == "" {
			continue
		}
		a := advertised{ref: n, hash: hashes[n], branch: branchOf(n)}
		if n == "HEAD" {
			a.branch = branchOf(head)
		}
		return a, nil
	}
	if names[0] == "HEAD" {
		return advertised{}, ErrUnborn
	}
	return advertised{}, fmt.Errorf("%w: %q", ErrNoRef, ref)
}

// skeleton makes a bare repository without anything in it. HEAD comes last and makes it one.
func skeleton(dir, format string) error {
	if _, err := os.Stat(filepath.Join(dir, "HEAD")); err == nil {
		return nil
	}
	for _, d := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	config := strings.Replace(formatSection(format), "bare = false", "bare = true", 1)
	return writeFiles(dir, []privateFile{{"config", []byte(config)}, {"HEAD", []byte("ref: refs/heads/none\n")}})
}

// keep gives what is already in the mirror the name of the ref.
func (f fetcher) keep(ctx context.Context, ref, hash string) error {
	return f.git.Run(ctx, Call{GitDir: f.dir, Args: []string{"update-ref", keptRef(ref), hash}})
}

func (f fetcher) pull(ctx context.Context, refspecs ...string) error {
	args := []string{"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules", "--refmap="}
	_, err := f.output(ctx, f.call(append(append(args, "origin"), refspecs...)...))
	return err
}

// call is a run of git that may talk to the remote. URL and credential go by environment: arguments
// are visible to everybody on the machine.
func (f fetcher) call(args ...string) Call {
	seconds := strconv.Itoa(max(1, int(f.timeout/time.Second)))
	c := Call{
		GitDir: f.dir, Protocols: remoteProtocols, Secrets: f.remote.secret, Args: args,
		Config: []string{
			"remote.origin.url=" + f.remote.url, "credential.helper=", "credential.useHttpPath=false",
			"http.followRedirects=false", "http.lowSpeedLimit=100", "http.lowSpeedTime=" + seconds,
			"fetch.unpackLimit=1", "remote.origin.prune=true", "fetch.writeCommitGraph=false", "core.fsync=default",
		},
		Env: []string{
			"GIT_SSH_VARIANT=ssh",
			"GIT_SSH_COMMAND=ssh -oBatchMode=yes -oStrictHostKeyChecking=yes -oConnectTimeout=" + seconds +
				" -oServerAliveInterval=5 -oServerAliveCountMax=3 -oClearAllForwardings=yes -oPermitLocalCommand=no",
		},
	}
	if f.remote.host != "" && f.remote.cred != (Credential{}) {
		c.Config = append(c.Config, "credential."+f.remote.host+".helper="+credentialHelper)
		c.Env = append(c.Env, "WARMFLEET_GIT_USER="+f.remote.cred.User, "WARMFLEET_GIT_PASSWORD="+f.remote.cred.Password)
	}
	return c
}

// credentialHelper answers from the environment; printf is a builtin of sh, so nothing shows in a process list.
const credentialHelper = `!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$WARMFLEET_GIT_USER" "$WARMFLEET_GIT_PASSWORD"; }; f`

// output runs c and returns its stdout.
func (f fetcher) output(ctx context.Context, c Call) ([]byte, error) {
	out := &boundedBuffer{max: maxOutput}
	c.Stdout = out
	if err := f.run(ctx, c); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// run runs c. Serving a local repository that belongs to another user needs a safe.directory in a
// file, since a local upload-pack gets none of our settings; the file names this one directory.
func (f fetcher) run(ctx context.Context, c Call) error {
	if f.remote.local != "" {
		safe := filepath.Join(f.home, "safe")
		local := f.remote.local
		if real, err := filepath.EvalSymlinks(local); err == nil {
			local = real
		}
		text := fmt.Sprintf("[safe]\n\tdirectory = %s\n\tdirectory = %s\n", quoteConfig(local), quoteConfig(filepath.Join(local, ".git")))
		if err := writeOnce(safe, text); err != nil {
			return err
		}
		c.Env = append(c.Env, "GIT_CONFIG_GLOBAL="+safe)
	}
	return f.git.Run(ctx, c)
}

// writeOnce gives a file a content that it may have already: a push reads it beside the fetch of another.
func writeOnce(path, text string) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	return statedir.WriteFile(path, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// tidy keeps the number of packs of a mirror that is fetched often in bounds, and removes what killed
// fetches left.
func (f fetcher) tidy(ctx context.Context, s *Store) {
	pattern := filepath.Join(f.dir, "objects", "pack", "*")
	files, err := filepath.Glob(pattern)
	packs := 0
	for _, name := range files {
		if strings.HasSuffix(name, ".pack") {
			packs++
		}
		st, statErr := os.Lstat(name)
		if statErr == nil && strings.HasPrefix(filepath.Base(name), "tmp_") && time.Since(st.ModTime()) > leftAfter {
			err = errors.Join(err, os.Remove(name))
		}
	}
	if packs > maxPacks {
		err = errors.Join(err, f.git.Run(ctx, Call{GitDir: f.dir, Args: []string{"repack", "-d", "-q", "--geometric=2"}}))
	}
	if err != nil && ctx.Err() == nil {
		s.opt.Log.Warn().Err(err).Str("remote", f.remote.url).Msg("tidy a mirror")
	}
}
