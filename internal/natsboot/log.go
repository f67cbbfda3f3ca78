package natsboot

import (
	"fmt"
	"strings"
	"sync"

	"github.com/rs/zerolog"
)

// serverLog is the server's logger. What the server calls fatal does not end this process:
// the first such message is kept for Start.
type serverLog struct {
	log zerolog.Logger

	mu    sync.Mutex
	fatal string
}

// Noticef logs what the server tells of its ordinary life; to us that is detail.
func (l *serverLog) Noticef(format string, v ...any) { l.log.Debug().Msgf(format, v...) }

// plaintext is what the server says of every password it can read. Ours is random, 0600 on the
// disk and good on loopback only, so nobody can do anything about it.
const plaintext = "Plaintext passwords detected, use nkeys or bcrypt"

// Warnf implements server.Logger.
func (l *serverLog) Warnf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	// What the file store says of an unclean end is how it comes back, and it does.
	if text == plaintext || strings.HasPrefix(text, "Filestore [") {
		l.log.Debug().Msg(text)
		return
	}
	l.log.Warn().Msg(text)
}

// Errorf implements server.Logger.
func (l *serverLog) Errorf(format string, v ...any) { l.log.Error().Msgf(format, v...) }

// Debugf implements server.Logger.
func (l *serverLog) Debugf(format string, v ...any) { l.log.Debug().Msgf(format, v...) }

// Tracef implements server.Logger.
func (l *serverLog) Tracef(format string, v ...any) { l.log.Trace().Msgf(format, v...) }

// Fatalf keeps the message for Start.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == "" {
		l.fatal = fmt.Sprintf(format, v...)
	}
	l.log.Error().Msgf(format, v...)
}

func (l *serverLog) fatalMessage() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
