package events

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// declarations lists every stream and bucket of a fleet (docs/formats.md). Buckets are streams too: the client's own calls would
// reset what they do not know of.
func declarations(s Subjects, o Options) []declaration {
	b := s.Buckets()
	// Those without a limit come first: the server refuses them when all it has is reserved.
	return []declaration{
		eventsStream(s, o), schedulesStream(s, o), layersBucket(s, o),
		bucket(b.Leases, o, LeaseTTL), bucket(b.Workers, o, WorkerTTL),
		bucket(b.Pools, o, 0), bucket(b.Images, o, 0), bucket(b.Checkpoints, o, 0), bucket(b.Plans, o, 0), bucket(b.Sessions, o, 0),
		commandsStream(s, o), submissionsStream(s, o), deadLettersStream(s, o), outputStream(s, o),
	}
}

// limit returns the asked-for size, or the default and that it may be halved.
func limit(asked, standard int64) (bytes int64, firm bool) {
	if asked > 0 {
		return asked, true
	}
	return standard, false
}

// basics are the settings every stream has, in the form in which the server reports them.
func basics(c *jetstream.StreamConfig, o Options, subjects ...string) {
	c.Subjects = subjects
	c.Storage = jetstream.FileStorage
	c.Replicas = o.Replicas
	c.MaxMsgs = -1
	c.MaxConsumers = -1
	c.MaxMsgSize = -1
	c.MaxMsgsPerSubject = -1
	c.Duplicates = dedupeWindow
}

func submissionsStream(s Subjects, o Options) declaration {
	size, firm := limit(o.Limits.Submissions, 128<<20)
	return declaration{name: s.SubmissionsStream(), limit: size, firm: firm, set: func(c *jetstream.StreamConfig) {
		basics(c, o, s.Submit("*"))
		c.Retention = jetstream.WorkQueuePolicy
		c.Discard = jetstream.DiscardNew // the publisher must learn that it is full
		c.AllowDirect = true
		c.AllowRollup = false // anyone may publish here: a rollup header would erase other people's submissions
	}}
}

func commandsStream(s Subjects, o Options) declaration {
	size, firm := limit(o.Limits.Commands, 64<<20)
	return declaration{name: s.CommandsStream(), limit: size, firm: firm, set: func(c *jetstream.StreamConfig) {
		basics(c, o, s.Command("*", "*", "*"))
		c.Retention = jetstream.WorkQueuePolicy
		c.Discard = jetstream.DiscardNew
		c.MaxMsgsPerSubject = 1       // with the next line: one command of a verb for a plan, also after a restart,
		c.DiscardNewPerSubject = true // when the server has forgotten the ids of acknowledged messages
		c.AllowDirect = true
	}}
}

func eventsStream(s Subjects, o Options) declaration {
	size, firm := limit(o.Limits.Events, 0)
	return declaration{name: s.EventsStream(), limit: size, firm: firm, set: func(c *jetstream.StreamConfig) {
		basics(c, o, s.Event("*", "*", "*"))
		c.Retention = jetstream.LimitsPolicy
		c.Discard = jetstream.DiscardNew // the truth is never dropped silently
		c.MaxAge = EventAge
		c.DenyDelete = true         // history is not rewritten
		c.DenyPurge = true          // nor erased
		c.AllowRollup = false       // nor by a header
		c.AllowDirect = false       // the last event is answered by the leader: the fence must not see an old one
		c.AllowAtomicPublish = true // several events at once; cannot be asked for later without an update
	}}
}

func schedulesStream(s Subjects, o Options) declaration {
	return declaration{name: s.SchedulesStream(), set: func(c *jetstream.StreamConfig) {
		basics(c, o, s.prefix+".sched.>", s.prefix+".due.>")
		c.Retention = jetstream.WorkQueuePolicy
		c.Discard = jetstream.DiscardOld // the server allows no other with schedules
		c.AllowMsgSchedules = true       // a schedule's target bypasses subject permissions, hence a stream of its own
		c.AllowMsgTTL = true
		c.AllowRollup = true // one schedule per subject; the server sets it with schedules
		c.AllowDirect = true
	}}
}

func outputStream(s Subjects, o Options) declaration {
	size, firm := limit(o.Limits.Output, 1<<30)
	return declaration{name: s.OutputStream(), limit: size, firm: firm, set: func(c *jetstream.StreamConfig) {
		basics(c, o, s.prefix+".out.*.*")
		c.Retention = jetstream.LimitsPolicy
		c.Discard = jetstream.DiscardOld
		c.MaxAge = outputAge
		c.AllowDirect = true
		if o.Replicas == 1 {
			c.PersistMode = jetstream.AsyncPersistMode // output may lose its last moments with the power, and must not cost an fsync a chunk; one replica only
		}
	}}
}

func deadLettersStream(s Subjects, o Options) declaration {
	size, firm := limit(o.Limits.DeadLetters, 64<<20)
	return declaration{name: s.DeadLettersStream(), limit: size, firm: firm, set: func(c *jetstream.StreamConfig) {
		basics(c, o, s.prefix+".dlq.>")
		c.Retention = jetstream.LimitsPolicy
		c.Discard = jetstream.DiscardOld
		c.MaxAge = letterAge
		c.AllowDirect = true
	}}
}

// bucket is a key-value bucket (ADR-8). One with a time to live is kept in memory.
func bucket(name string, o Options, ttl time.Duration) declaration {
	return declaration{name: "KV_" + name, set: func(c *jetstream.StreamConfig) {
		basics(c, o, "$KV."+name+".>")
		c.Retention = jetstream.LimitsPolicy
		c.Discard = jetstream.DiscardNew
		c.MaxMsgsPerSubject = 1              // History 1: with more, key lifetimes below the marker's are raised silently
		c.SubjectDeleteMarkerTTL = markerTTL // LimitMarkerTTL: watchers learn of expired keys
		c.AllowMsgTTL = true                 // delete markers go away by themselves
		c.AllowRollup = true
		c.DenyDelete = true
		c.AllowDirect = true
		c.Duplicates = 2 * time.Minute
		if ttl > 0 {
			c.MaxAge = ttl                      // the bucket's, not the key's: an update would drop the key's
			c.Storage = jetstream.MemoryStorage // heartbeats must not cost an fsync each; they are renewed after a restart
			c.Duplicates = ttl                  // the server allows no longer window
		}
	}}
}

// layersBucket is an object store (ADR-20).
func layersBucket(s Subjects, o Options) declaration {
	name := s.LayersBucket()
	size, firm := limit(o.Limits.Layers, 0)
	return declaration{name: "OBJ_" + name, limit: size, firm: firm, set: func(c *jetstream.StreamConfig) {
		basics(c, o, "$O."+name+".C.>", "$O."+name+".M.>")
		c.Retention = jetstream.LimitsPolicy
		c.Discard = jetstream.DiscardNew
		c.AllowRollup = true
		c.AllowDirect = true
		c.Compression = jetstream.NoCompression // layers are compressed already
		c.Duplicates = 2 * time.Minute
	}}
}
