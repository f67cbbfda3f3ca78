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

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/statedir"
)

// DefaultTimeout is how long a remote may give no sign of life unless Options say otherwise.
const DefaultTimeout = 15 * time.Second

const (
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
	return s.mirror(ctx, Remote{URL: url, Ref: ref})
}

func (s *Store) mirror(ctx context.Context, r Remote) (Mirror, error) {
	src, err := s.urlSource(ctx, r)
	if err != nil {
		return Mirror{}, err
	}
	return Mirror{Dir: src.gitDir, Ref: keptRef(r.Ref), Commit: src.commit, Branch: src.branch}, nil
}

func keptRef(ref string) string { return keptPrefix + keyOf(ref) }

func (s *Store) urlSource(ctx context.Context, r Remote) (source, error) {
	rem, err := parseRemote(r.URL)
	if err != nil {
		return source{}, err
	}
	if err := checkRef(r.Ref); err != nil {
		return source{}, err
	}
	// Before callers share, as in Sync.
	if err := s.authorizeBy(ctx, &rem, r.Credential); err != nil {
		return source{}, fmt.Errorf("gitrepo: fetch %q: %w", rem.url, err)
	}
	src, err := s.fetches.Do(ctx, keyOf(rem.key(), rem.cred.User, rem.cred.Password, r.Ref), func(ctx context.Context) (source, error) {
		return s.fetch(ctx, rem, r.Ref)
	})
	if err != nil {
		return source{}, fmt.Errorf("gitrepo: fetch %q: %w", rem.url, err)
	}
	return src, nil
}

// fetch brings the mirror up to date for one ref.
func (s *Store) fetch(ctx context.Context, r remote, ref string) (source, error) {
	var t tip
	err := s.inMirror(ctx, r, func(f fetcher) error {
		refs, err := f.ask(ctx, ref)
		if err != nil {
			return err
		}
		adv, err := refs.find(ref)
		if err != nil {
			return err
		}
		return f.mending(ctx, adv.format(), func(f fetcher) (err error) {
			t, err = f.fetch(ctx, adv, keptRef(ref))
			return err
		})
	})
	if err != nil {
		return source{}, err
	}
	return s.mirrorSource(r, t)
}

// inMirror runs work on the mirror of a remote, alone.
func (s *Store) inMirror(ctx context.Context, r remote, work func(fetcher) error) error {
	home := s.mirrorHome(r)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	lock, err := statedir.Lock(ctx, filepath.Join(home, lockFile))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	f := fetcher{git: s.git, home: home, dir: s.mirrorDir(r), remote: r, timeout: s.opt.Timeout, log: s.opt.Log}
	if err := work(f); err != nil {
		return err
	}
	f.tidy(ctx)
	return nil
}

func (s *Store) mirrorHome(r remote) string { return filepath.Join(s.opt.Dir, mirrorsDir, r.key()) }

func (s *Store) mirrorDir(r remote) string { return filepath.Join(s.mirrorHome(r), workshopDir) }

// mirrorSource is a tip in the mirror of a remote.
func (s *Store) mirrorSource(r remote, t tip) (source, error) {
	dir := s.mirrorDir(r)
	src := source{tip: t, label: r.url, gitDir: dir, objects: filepath.Join(dir, "objects"), mirror: true}
	var err error
	if src.shallow, err = shallowOf(dir); err != nil {
		return source{}, err
	}
	parts := []string{"url", r.url, t.format()}
	if src.shallow != nil {
		parts = append(parts, string(src.shallow))
	}
	src.key = keyOf(parts...)
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

// fetcher talks to one remote for one mirror, whose lock its user holds.
type fetcher struct {
	git     Git
	home    string
	dir     string // the mirror
	remote  remote
	timeout time.Duration
	log     zerolog.Logger
}

// fetch gets what the remote said about a ref into the mirror, under a name of ours.
func (f fetcher) fetch(ctx context.Context, adv advertised, kept string) (tip, error) {
	if t, err := f.git.firstCommit(ctx, f.dir, adv.hash); err == nil {
		return tip{commit: t.commit, branch: adv.branch}, f.keep(ctx, kept, adv.hash)
	}
	from, want := adv.ref, kept
	if from == "" {
		from, want = adv.hash, adv.hash
	}
	err := f.pull(ctx, "+"+from+":"+kept)
	if adv.ref == "" && ExitCode(err) > 0 && !errors.Is(err, ErrDenied) {
		// The remote gives no single commits away: it may be on a branch or tag.
		err = f.pull(ctx, followedRefs()...)
	}
	if err != nil {
		return tip{}, err
	}
	t, err := f.git.firstCommit(ctx, f.dir, want)
	switch {
	case errors.Is(err, ErrNoRef) && adv.ref == "":
		return tip{}, fmt.Errorf("%w: revision no longer available: the remote does not give %s away", ErrNoRef, adv.hash)
	case errors.Is(err, ErrNoRef):
		return tip{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return tip{commit: t.commit, branch: adv.branch}, err
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

// keep gives what is already in the mirror a name of ours.
func (f fetcher) keep(ctx context.Context, kept, hash string) error {
	return f.git.Run(ctx, Call{GitDir: f.dir, Args: []string{"update-ref", kept, hash}})
}

// pull fetches, and removes what is gone at the remote where a refspec has a star: a branch that became a directory of
// branches goes first. A shallow remote makes the mirror shallow. It ends when the remote gives no sign of life, however long it
// takes otherwise.
func (f fetcher) pull(ctx context.Context, refspecs ...string) error {
	args := []string{
		"fetch", "--progress", "--prune", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules",
		"--update-shallow", "--refmap=", "origin",
	}
	_, err := f.watched(ctx, f.call(append(args, refspecs...)...))
	return err
}

// call is a run of git that may talk to the remote. URL and credential go by environment: arguments
// are visible to everybody on the machine.
func (f fetcher) call(args ...string) Call {
	seconds := 2 * max(1, int(f.timeout/time.Second)) // what watches for signs of life is earlier, but does not see a push
	c := Call{
		GitDir: f.dir, Protocols: remoteProtocols, Secrets: f.remote.secret, Args: args,
		Config: []string{
			"remote.origin.url=" + f.remote.url, "credential.helper=", "credential.useHttpPath=false",
			"http.followRedirects=false", "http.lowSpeedLimit=1", "http.lowSpeedTime=" + strconv.Itoa(seconds),
			"fetch.unpackLimit=1", "remote.origin.prune=true", "fetch.writeCommitGraph=false", "core.fsync=default",
		},
		Env: []string{
			"GIT_SSH_VARIANT=ssh",
			"GIT_SSH_COMMAND=ssh -oBatchMode=yes -oStrictHostKeyChecking=yes -oConnectTimeout=" + strconv.Itoa(seconds) +
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
func (f fetcher) tidy(ctx context.Context) {
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
		f.log.Warn().Err(err).Str("remote", f.remote.url).Msg("tidy a mirror")
	}
}
