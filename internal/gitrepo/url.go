package gitrepo

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// Errors of values that come from a plan. They are checked before git sees the value.
var (
	// ErrURL reports a repository URL that is refused: an option, a helper (ext::) or not a URL.
	ErrURL = errors.New("url is refused")
	// ErrRef reports a ref that is refused: an option, or bytes no ref can hold.
	ErrRef = errors.New("ref is refused")
)

// Credential is what a remote is shown. The zero value is none.
type Credential struct {
	User, Password string
}

// remote is a checked repository URL, taken apart so that no secret is in what git gets as an argument.
type remote struct {
	url    string // without password, and without user where the user is part of a credential
	local  string // the directory, for a path or file:// URL
	host   string // scheme://host[:port] of an http(s) URL, else ""
	cred   Credential
	secret []string // texts that must not appear anywhere
}

// scpForm is user@host:path, which ssh remotes may be written as.
var scpForm = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^:].*$`)

// parseRemote checks a URL: https, http, ssh, git, file, an absolute local path or the scp form.
func parseRemote(raw string) (remote, error) {
	switch {
	case raw == "" || strings.HasPrefix(raw, "-"):
		return remote{}, fmt.Errorf("gitrepo: %w: it is empty or begins with a dash", ErrURL)
	case strings.ContainsFunc(raw, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return remote{}, fmt.Errorf("gitrepo: %w: it holds control characters", ErrURL)
	case strings.HasPrefix(raw, "/"):
		return localRemote(raw)
	case !strings.Contains(raw, "://"):
		if scpForm.MatchString(raw) {
			return remote{url: raw}, nil
		}
		return remote{}, fmt.Errorf("gitrepo: %w: %q is no URL, absolute path or host:path", ErrURL, strip(raw))
	}
	u, err := url.Parse(raw)
	if err != nil {
		return remote{}, fmt.Errorf("gitrepo: %w: it does not parse", ErrURL) // the cause quotes the URL
	}
	switch u.Scheme {
	case "file":
		return localRemote(u.Path)
	case "http", "https", "ssh", "git":
	default:
		return remote{}, fmt.Errorf("gitrepo: %w: scheme %q", ErrURL, u.Scheme)
	}
	if u.Hostname() == "" || strings.HasPrefix(u.Hostname(), "-") || strings.HasPrefix(u.User.Username(), "-") {
		return remote{}, fmt.Errorf("gitrepo: %w: no host, or a host or user that begins with a dash", ErrURL)
	}
	return networkRemote(u), nil
}

func localRemote(path string) (remote, error) {
	if !filepath.IsAbs(path) {
		return remote{}, fmt.Errorf("gitrepo: %w: path %q is not absolute", ErrURL, path)
	}
	clean := filepath.Clean(path)
	return remote{url: clean, local: clean}, nil
}

func networkRemote(u *url.URL) remote {
	var r remote
	password, _ := u.User.Password()
	r.cred = Credential{User: u.User.Username(), Password: password}
	r.secret = secretForms(r.cred)
	if u.User != nil && strings.HasPrefix(u.Scheme, "http") {
		r.secret = append(r.secret, u.User.String())
	}
	if u.Scheme == "ssh" {
		if r.cred.User != "" {
			u.User = url.User(r.cred.User)
		}
		r.url = u.String()
		return r
	}
	u.User = nil
	r.url = u.String()
	if u.Scheme != "git" {
		r.host = u.Scheme + "://" + u.Host
	}
	return r
}

// secretForms are the ways a credential may be spelled in a message.
func secretForms(c Credential) []string {
	var forms []string
	for _, s := range []string{c.Password, tokenUser(c)} {
		if s == "" {
			continue
		}
		forms = append(forms, s, url.QueryEscape(s), url.PathEscape(s), base64.StdEncoding.EncodeToString([]byte(s)), base64.RawURLEncoding.EncodeToString([]byte(s)))
	}
	if c.Password != "" {
		forms = append(forms, base64.StdEncoding.EncodeToString([]byte(c.User+":"+c.Password)))
	}
	return forms
}

// tokenUser is the user name where it is the secret: https://TOKEN@host.
func tokenUser(c Credential) string {
	if c.Password == "" {
		return c.User
	}
	return ""
}

// key names what is kept for the remote. Who asks makes no difference to what is there.
func (r remote) key() string { return keyOf("url", r.url) }

// keyOf is a short file name for values that any bytes may occur in.
func keyOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

var userInfo = regexp.MustCompile(`://[^/@\s]+@`)

// strip removes the user part of every URL in text.
func strip(text string) string { return userInfo.ReplaceAllString(text, "://") }

// redact removes secrets and the user part of every URL.
func redact(text string, secrets []string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	return strip(text)
}

// checkRef refuses refs that git or a shell of a remote could take for something else.
func checkRef(ref string) error {
	switch {
	case strings.HasPrefix(ref, "-") || strings.HasPrefix(ref, "+"):
		return fmt.Errorf("gitrepo: %w: %q begins with a dash or plus", ErrRef, ref)
	case strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return fmt.Errorf("gitrepo: %w: %q holds a space or control character", ErrRef, ref)
	}
	return nil
}
