package objectstore_test

import (
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
)

// startCluster runs three servers that replicate among themselves.
func startCluster(t *testing.T) []*server.Server {
	t.Helper()
	var ports []int
	var routes []*url.URL // JetStream wants them before the first server starts
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		addr, ok := l.Addr().(*net.TCPAddr)
		must(t, l.Close())
		if !ok {
			t.Fatalf("address %v", l.Addr())
		}
		ports = append(ports, addr.Port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: addr.String()})
	}
	var servers []*server.Server
	for i, port := range ports {
		servers = append(servers, startServer(t, func(o *server.Options) {
			o.ServerName = fmt.Sprint("n", i)
			o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port}
			o.Routes = routes
		}))
	}
	return servers
}

// What one client stored, another reads at once from any replica: one that lags behind
// does not make an object missing or corrupt.
func TestJetStream_Replicated(t *testing.T) {
	servers := startCluster(t)
	js := connect(t, servers[0].ClientURL())
	deadline := time.Now().Add(30 * time.Second)
	for {
		_, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: bucket, Replicas: 3})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cluster does not form: %v", err)
		}
	}
	var stores []*objectstore.JetStream
	for _, s := range servers {
		stores = append(stores, openStore(t, connect(t, s.ClientURL()), objectstore.Options{}))
	}
	for i := range 12 {
		name := fmt.Sprint("x", i)
		data := objectstoretest.Bytes(uint64(i), 1_100_000)
		objectstoretest.Put(t, stores[i%3], name, data)
		for _, s := range stores {
			if _, err := s.Stat(t.Context(), name); err != nil {
				t.Errorf("Stat: %v", err)
			}
			objectstoretest.Check(t, s, name, data)
		}
		if err := stores[(i+1)%3].Delete(t.Context(), name); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
	if n := messages(t, js, "$O."+bucket+".C.>"); n != 0 {
		t.Errorf("%d chunks are left", n)
	}
}
