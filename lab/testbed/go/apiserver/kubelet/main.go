// The port-forwards of a kubelet, for tests: the streaming server that container runtimes use, behind the proxy of a
// kubelet. Its only pod has the ports of loopback, and all clients may use them.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/cri/streaming"
	"k8s.io/kubelet/pkg/cri/streaming/portforward"
)

const (
	loopback    = "127.0.0.1"
	dialTimeout = 5 * time.Second
	readTimeout = 5 * time.Second
)

func main() {
	listen := flag.String("listen", "127.0.0.1:10250", "address of the kubelet's endpoint")
	certificate := flag.String("cert", "", "file with the certificate of the endpoint")
	key := flag.String("key", "", "file with the key of the certificate")
	pod := flag.String("pod", "", "namespace/name of the only pod on this node")
	flag.Parse()

	runtime, err := startRuntime()
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("namespace")+"/"+r.PathValue("pod") != *pod {
			http.Error(w, "pod does not exist", http.StatusNotFound)
			return
		}
		forward(runtime, w, r)
	})
	server := http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: readTimeout}
	log.Fatal(server.ListenAndServeTLS(*certificate, *key))
}

// startRuntime serves the streams of a container runtime on a free port of loopback.
func startRuntime() (streaming.Server, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, err
	}
	config := streaming.DefaultConfig
	config.Addr = listener.Addr().String()
	server, err := streaming.NewServer(config, sandboxes{})
	if err != nil {
		return nil, err
	}
	go func() {
		log.Fatal((&http.Server{Handler: server, ReadHeaderTimeout: readTimeout}).Serve(listener))
	}()
	return server, nil
}

// forward proxies a request to the URL at which the container runtime expects it, as a kubelet does.
func forward(runtime streaming.Server, w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// A runtime knows the ID of the sandbox, not the name of the pod.
	request := runtimeapi.PortForwardRequest{PodSandboxId: "sandbox-of-" + r.PathValue("pod"), Port: options.Ports}
	response, err := runtime.GetPortForward(&request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	location, err := url.Parse(response.Url)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	proxy.NewUpgradeAwareHandler(location, nil, false, true, responder{}).ServeHTTP(w, r)
}

// responder answers requests that could not be proxied.
type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// sandboxes have the ports of loopback.
type sandboxes struct{}

// PortForward connects a stream to a port until one of them ends.
func (sandboxes) PortForward(ctx context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	dialer := net.Dialer{Timeout: dialTimeout}
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	defer connection.Close()
	ended := make(chan error, 2)
	go func() {
		_, err := io.Copy(connection, stream)
		ended <- err
	}()
	go func() {
		_, err := io.Copy(stream, connection)
		ended <- err
	}()
	return <-ended
}

var errNotServed = errors.New("only port-forwards are served")

func (sandboxes) Exec(context.Context, string, []string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan remotecommand.TerminalSize) error {
	return errNotServed
}

func (sandboxes) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan remotecommand.TerminalSize) error {
	return errNotServed
}
