// Package warmpool keeps things that are slow to make ready before they are asked for: a claim takes one in constant
// time, and its replacement is begun in the background, a moment later. A claimed thing never goes back.
//
// Core decides and has neither goroutines nor I/O: who gets what, who is too old or of an old generation, what is
// missing and when to try again are data. Pool runs what a Core decides; a Gate bounds how many members all pools
// of a process make at once; Spread is what workers share. The package must not know what it keeps, nor NATS,
// plans or layers.
package warmpool

import (
	"slices"
	"time"
)

// Bounds of a pool's refill.
const (
	// FirstBackoff is the pause after a member could not be made; it doubles with each failure in a row, up to MaxBackoff.
	FirstBackoff = time.Second
	MaxBackoff   = time.Minute
	// leadShare and maxLead: a member's replacement is made this part of its maximal age before it is reached, and not
	// more than maxLead before it, so that members of one age are not all gone at once.
	leadShare = 10
	maxLead   = time.Minute
)

// ID is a member of one pool. Ids are never used again.
type ID uint64

// Settings say what a pool keeps.
type Settings struct {
	// Target is how many idle members to keep; 0 keeps none.
	Target int
	// MaxAge is how long a member may idle; 0 means for ever.
	MaxAge time.Duration
	// Generation is what members are made of. Those of another one are replaced one by one, and are handed out only while
	// none of the present generation is ready.
	Generation string
	// Shape is what cannot be changed in a member; those of another shape are dropped at once and never handed out.
	Shape string
	// Off keeps nothing at all, not even what a prewarm asks for.
	Off bool
	// Making bounds how many are made at once; 0 means one.
	Making int
}

// Kind is what an Action asks for.
type Kind int

// The kinds of actions.
const (
	// Make asks to make a member of Generation and to tell how that ended with Made or Failed.
	Make Kind = iota
	// Drop asks to close a member, which is none any more.
	Drop
)

// Action is something to be done for a pool.
type Action struct {
	Kind       Kind
	ID         ID
	Generation string
	// Why a member is dropped, for people.
	Why string
}

// Stats are numbers of a pool; the counts are since it was made.
type Stats struct {
	// Idle are ready, Making are being made; Target has Prewarmed ones more than the settings say.
	Idle, Making, Target, Prewarmed int
	Hits, Misses                    int
	// Wasted went unused for whatever reason; Expired are those of them that grew too old.
	Wasted, Expired int
	// RefillLag is how long the last replacement took from the claim to ready.
	RefillLag time.Duration
	// Oldest is the age of the oldest idle member.
	Oldest time.Duration
	// Error is why the last member could not be made, "" if it could.
	Error string
}

// member is one that is being made or waits.
type member struct {
	id         ID
	generation string
	shape      string
	born       time.Time // ready since
}

// Core is the bookkeeping of one pool. Its methods do nothing but compute; it is not safe for concurrent use. All
// times it is given must not go back.
type Core struct {
	set       Settings
	prewarmed time.Time // until then one more is kept
	last      ID
	making    map[ID]*member
	ready     []*member // of the present generation, oldest first
	old       []*member // of former ones, oldest first
	doomed    []Action  // drops that Next has not handed out yet
	owed      []time.Time
	failures  int
	retry     time.Time // nothing is made before
	stats     Stats
}

// NewCore returns the bookkeeping of a pool without members.
func NewCore(s Settings) *Core { return &Core{set: s, making: map[ID]*member{}} }

// Configure changes the settings. Members are replaced by later calls of Next, but for those of another shape.
func (c *Core) Configure(s Settings) {
	if s.Generation != c.set.Generation || s.Shape != c.set.Shape {
		c.retry, c.failures, c.stats.Error = time.Time{}, 0, ""
	}
	all := append(c.old, c.ready...)
	slices.SortStableFunc(all, func(a, b *member) int { return a.born.Compare(b.born) })
	c.set, c.old, c.ready = s, nil, nil
	for _, m := range all {
		c.place(m)
	}
}

// place puts a ready member where it belongs. Those before it are older.
func (c *Core) place(m *member) {
	switch {
	case m.shape != c.set.Shape:
		c.waste(m, "the pool was changed")
	case m.generation != c.set.Generation:
		c.old = append(c.old, m)
	default:
		c.ready = append(c.ready, m)
	}
}

// Prewarm keeps one more than the target until the given time. Asked again, it is still one.
func (c *Core) Prewarm(until time.Time) {
	if until.After(c.prewarmed) {
		c.prewarmed = until
	}
}

// Claim takes the youngest valid member: of the present generation if one is ready, else of a former one. It takes constant time,
// however many members there are.
func (c *Core) Claim(now time.Time) (ID, bool) {
	for _, list := range []*[]*member{&c.ready, &c.old} {
		n := len(*list)
		if n == 0 || c.expired((*list)[n-1], now) { // then so are all before it
			continue
		}
		m := (*list)[n-1]
		(*list)[n-1] = nil
		*list = (*list)[:n-1]
		c.stats.Hits++
		c.owe(now)
		return m.id, true
	}
	c.stats.Misses++
	return 0, false
}

// Dead takes back a claim of a member that turned out not to work. It counts as wasted, not as a hit.
func (c *Core) Dead(id ID) {
	c.stats.Hits--
	c.stats.Wasted++
	c.doomed = append(c.doomed, Action{Kind: Drop, ID: id, Why: "it died"})
}

// owe notes a claim whose replacement is to come.
func (c *Core) owe(now time.Time) {
	if len(c.owed) < c.set.Target {
		c.owed = append(c.owed, now)
	}
}

// Next returns what is to be done now, and takes it for begun. Of members to be made there are at most room.
func (c *Core) Next(now time.Time, room int) []Action {
	c.expire(now)
	fresh := c.fresh(now)
	target := c.Target(now)
	if fresh >= target {
		c.owed = nil
	}
	c.surplus(fresh, target)
	acts := c.doomed
	c.doomed = nil
	for n := min(room, c.missing(now, fresh, target)); n > 0; n-- {
		c.last++
		c.making[c.last] = &member{id: c.last, generation: c.set.Generation, shape: c.set.Shape}
		acts = append(acts, Action{Kind: Make, ID: c.last, Generation: c.set.Generation})
	}
	return acts
}

// Target is how many idle members are to be kept now.
func (c *Core) Target(now time.Time) int {
	switch {
	case c.set.Off:
		return 0
	case now.Before(c.prewarmed):
		return c.set.Target + 1
	}
	return c.set.Target
}

// missing is how many members are to be begun now, whatever room there is.
func (c *Core) missing(now time.Time, fresh, target int) int {
	if now.Before(c.retry) {
		return 0
	}
	limit := max(c.set.Making, 1)
	if c.failures > 0 {
		limit = 1 // one tries whether it works again
	}
	due := 0
	for _, m := range c.making {
		if m.generation == c.set.Generation && m.shape == c.set.Shape {
			due++
		}
	}
	return max(0, min(target-fresh-due, limit-len(c.making)))
}

// fresh counts the ready members that need no replacement yet.
func (c *Core) fresh(now time.Time) int {
	for i, m := range c.ready {
		if c.set.MaxAge == 0 || now.Sub(m.born) < c.set.MaxAge-c.lead() {
			return len(c.ready) - i
		}
	}
	return 0
}

func (c *Core) lead() time.Duration { return min(c.set.MaxAge/leadShare, maxLead) }

func (c *Core) expired(m *member, now time.Time) bool {
	return c.set.MaxAge > 0 && now.Sub(m.born) >= c.set.MaxAge
}

// expire drops what is too old.
func (c *Core) expire(now time.Time) {
	for _, list := range []*[]*member{&c.ready, &c.old} {
		for len(*list) > 0 && c.expired((*list)[0], now) {
			c.stats.Expired++
			c.waste((*list)[0], "it is too old")
			*list = (*list)[1:]
		}
	}
}

// surplus drops those that others have replaced: former generations first, then those that grow too old, and whatever
// is beyond the target. So no member goes for another one before that is ready.
func (c *Core) surplus(fresh, target int) {
	for len(c.old)+len(c.ready) > target {
		list, why := &c.old, "it is of a former image"
		if len(c.old) == 0 {
			list, why = &c.ready, "it is one too many"
		}
		if list == &c.ready && len(c.ready) > fresh {
			why = "it is nearly too old"
		}
		c.waste((*list)[0], why)
		*list = (*list)[1:]
	}
}

func (c *Core) waste(m *member, why string) {
	c.stats.Wasted++
	c.doomed = append(c.doomed, Action{Kind: Drop, ID: m.id, Generation: m.generation, Why: why})
}

// Made tells that a member is ready.
func (c *Core) Made(now time.Time, id ID) {
	m := c.making[id]
	delete(c.making, id)
	m.born = now
	c.place(m)
	if m.generation != c.set.Generation || m.shape != c.set.Shape {
		return
	}
	c.failures, c.retry, c.stats.Error = 0, time.Time{}, ""
	if len(c.owed) > 0 {
		c.stats.RefillLag = now.Sub(c.owed[0])
		c.owed = c.owed[1:]
	}
}

// Failed tells that a member could not be made, and why. Nothing is made for a while then; failures of several that were made
// at once count as one.
func (c *Core) Failed(now time.Time, id ID, why string) {
	m := c.making[id]
	delete(c.making, id)
	if m.generation != c.set.Generation || m.shape != c.set.Shape {
		return
	}
	c.stats.Error = why
	if now.Before(c.retry) {
		return
	}
	pause := MaxBackoff
	if c.failures < 6 { // 1 s doubled six times is more than a minute
		pause = min(FirstBackoff<<c.failures, MaxBackoff)
	}
	c.failures++
	c.retry = now.Add(pause)
}

// Gone tells that ready members died; each is dropped.
func (c *Core) Gone(dead func(ID) bool) {
	lost := func(m *member) bool {
		if !dead(m.id) {
			return false
		}
		c.waste(m, "it died")
		return true
	}
	c.ready, c.old = slices.DeleteFunc(c.ready, lost), slices.DeleteFunc(c.old, lost)
}

// Wake is when Next will have something to do although nothing happened; the zero time for never.
func (c *Core) Wake(now time.Time) time.Time {
	var at time.Time
	soonest := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	soonest(c.retry)
	soonest(c.prewarmed)
	if c.set.MaxAge > 0 {
		for _, m := range c.ready { // each becomes due for replacement at its own time
			soonest(m.born.Add(c.set.MaxAge - c.lead()))
			soonest(m.born.Add(c.set.MaxAge))
		}
		for _, m := range c.old[:min(1, len(c.old))] {
			soonest(m.born.Add(c.set.MaxAge))
		}
	}
	return at
}

// Members lists the ids of the ready members, oldest first, former generations before the present one.
func (c *Core) Members() []ID {
	var ids []ID
	for _, m := range append(slices.Clone(c.old), c.ready...) {
		ids = append(ids, m.id)
	}
	return ids
}

// Stats returns the numbers as of now.
func (c *Core) Stats(now time.Time) Stats {
	s := c.stats
	s.Idle, s.Making, s.Target = len(c.ready)+len(c.old), len(c.making), c.Target(now)
	s.Prewarmed = max(0, s.Target-c.set.Target)
	for _, list := range [][]*member{c.ready, c.old} {
		if len(list) > 0 {
			s.Oldest = max(s.Oldest, now.Sub(list[0].born))
		}
	}
	return s
}
