package fleet

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// AuthorFlag registers who commits are by that nobody else is named for.
func AuthorFlag(fs *pflag.FlagSet, c *worker.Config) {
	fs.Var((*author)(&c.Author), "author", "who commits are by where neither plan, repository nor pool names anybody, as 'NAME <EMAIL>'; without it such plans are refused")
}

// author is a flag whose value is an identity.
type author gitrepo.Identity

// Set implements pflag.Value.
func (a *author) Set(text string) error {
	id, err := plan.ParseIdentity(text)
	*a = author(id)
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), plan.ErrIdentity.Error()+": "))
	}
	return nil
}

// String implements pflag.Value.
func (a *author) String() string {
	if a.Name == "" {
		return ""
	}
	return fmt.Sprintf("%s <%s>", a.Name, a.Email)
}

// Type implements pflag.Value.
func (a *author) Type() string { return "identity" }
