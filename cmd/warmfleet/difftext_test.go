package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScreen_Write(t *testing.T) {
	text := "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n same\n--- deleted\x1b[2J\n+++ added\r\n \ttab\n\\ No newline at end of file\n" +
		"@@ -7,1 +7,1 @@\n-\xff\xc2\x9b1m\n+a\u202eb \u00e9\n@@ not a hunk\nbinary: 1 bytes\n"
	for _, c := range []struct {
		name   string
		colour bool
		want   string
	}{
		{
			"Colour", true,
			"\x1b[1mdiff --git a/x b/x\x1b[m\n\x1b[1m--- a/x\x1b[m\n\x1b[1m+++ b/x\x1b[m\n\x1b[36m@@ -1,3 +1,3 @@\x1b[m\n same\n" +
				"\x1b[31m--- deleted^[[2J\x1b[m\n\x1b[32m+++ added^M\x1b[m\n \ttab\n\\ No newline at end of file\n" +
				"\x1b[36m@@ -7,1 +7,1 @@\x1b[m\n\x1b[31m-<ff><U+009B>1m\x1b[m\n\x1b[32m+a<U+202E>b \u00e9\x1b[m\n\x1b[1m@@ not a hunk\x1b[m\n\x1b[1mbinary: 1 bytes\x1b[m\n",
		},
		{
			"Plain", false,
			"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n same\n--- deleted^[[2J\n+++ added^M\n \ttab\n\\ No newline at end of file\n" +
				"@@ -7,1 +7,1 @@\n-<ff><U+009B>1m\n+a<U+202E>b \u00e9\n@@ not a hunk\nbinary: 1 bytes\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, chunk := range []int{1, 7, len(text)} {
				var out bytes.Buffer
				s := &screen{w: &out, colour: c.colour}
				for at := 0; at < len(text); at += chunk {
					if _, err := s.Write([]byte(text[at:min(at+chunk, len(text))])); err != nil {
						t.Fatal(err)
					}
				}
				if d := cmp.Diff(c.want, out.String()); d != "" {
					t.Errorf("in pieces of %d: (-want +got)\n%s", chunk, d)
				}
			}
		})
	}
}
