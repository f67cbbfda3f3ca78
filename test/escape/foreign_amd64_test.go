package escape

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// foreignAttempts make system calls by other numbers than a filter of this architecture knows.
func foreignAttempts() []attempt {
	return []attempt{
		{name: "system calls of 32 bits", like: "filters of one architecture", machine: "IA32 emulation", try: func(scene) (string, error) {
			// mov eax, 20 (getpid); int 0x80; ret
			code, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				return "", err
			}
			copy(code, []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3})
			entry := &code[0]
			function := unsafe.Pointer(&entry)
			(*(*func())(unsafe.Pointer(&function)))()
			return "made", nil
		}},
		{name: "system calls of x32", like: "filters of one architecture", machine: "x32", try: asks(0x40000000 | unix.SYS_GETPID)},
	}
}
