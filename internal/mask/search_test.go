package mask

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"
)

func TestSearch_Found(t *testing.T) {
	const secret = "s3cr3t/+canary 42"
	set := NewSearch(8, []byte(secret+"\n"), []byte("short"))
	for _, tc := range []struct {
		name   string
		chunks []string
		want   bool
	}{
		{"Plain", []string{"x" + secret + "y"}, true},
		{"CutByChunks", strings.Split(secret, ""), true},
		{"URL", []string{url.QueryEscape(secret)}, true},
		{"Base64", []string{base64.StdEncoding.EncodeToString([]byte("user:" + secret))}, true},
		{"AfterABeginning", []string{"s3cr3t/s3cr3t/+canary 42"}, true},
		{"TooShort", []string{"short"}, false},
		{"Half", []string{"s3cr3t/+can", "\x00", "ary 42"}, false},
		{"Nothing", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := set.Search()
			for _, c := range tc.chunks {
				if n, err := f.Write([]byte(c)); n != len(c) || err != nil {
					t.Fatalf("wrote %d, %v", n, err)
				}
			}
			if got := f.Found(); got != tc.want {
				t.Errorf("found %v, want %v", got, tc.want)
			}
			f.Reset()
			if f.Found() {
				t.Error("found after a reset")
			}
		})
	}
}

// What ends one file is not continued by the next.
func TestSearch_Reset(t *testing.T) {
	f := NewSearch(8, []byte("0123456789")).Search()
	for _, c := range []string{"01234", "56789"} {
		f.Reset()
		if _, err := f.Write([]byte(c)); err != nil {
			t.Fatal(err)
		}
	}
	if f.Found() {
		t.Error("found a secret that lies in two files")
	}
}

func TestSearch_NoSecrets(t *testing.T) {
	f := (*Set)(nil).Search()
	if _, err := f.Write([]byte("anything")); err != nil || f.Found() {
		t.Errorf("found %v, %v", f.Found(), err)
	}
}
