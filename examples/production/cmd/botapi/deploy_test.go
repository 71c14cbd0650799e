package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/redistest"
	"example.com/botapi/examples/production/internal/runtimetest"
	"github.com/matryer/is"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const deploy = "../../deploy/"

func deployed(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(deploy + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// runProgram runs a program, and skips the test where it is not installed.
func runProgram(t *testing.T, debianPackage, program string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s was not found (Debian: apt-get install %s)", program, debianPackage)
	}
	output, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, output)
	}
	return string(output)
}

func TestUnit(t *testing.T) {
	is := is.New(t)
	unit := deployed(t, "botapi.service")
	file := filepath.Join(t.TempDir(), "botapi.service")
	is.NoErr(os.WriteFile(file, []byte(strings.Replace(unit, "/usr/local/bin/botapi", binary, 1)), 0o600))
	is.Equal(runProgram(t, "systemd", "systemd-analyze", "verify", "--man=no", file), "") // it has nothing to say
}

// TestManifest reads every object into its type, where a member that the type
// does not have is an error, and looks whether what belongs together fits.
func TestManifest(t *testing.T) {
	is := is.New(t)
	kinds := map[string]any{
		"Job": new(batch.Job), "Deployment": new(apps.Deployment), "Service": new(core.Service),
		"PodDisruptionBudget": new(policy.PodDisruptionBudget), "NetworkPolicy": new(networking.NetworkPolicy),
	}
	documents := strings.Split(deployed(t, "kubernetes.yaml"), "\n---\n")
	is.Equal(len(documents), len(kinds))
	for _, document := range documents {
		var object struct{ Kind string }
		is.NoErr(yaml.Unmarshal([]byte(document), &object))
		is.True(kinds[object.Kind] != nil)
		is.NoErr(yaml.UnmarshalStrict([]byte(document), kinds[object.Kind]))
	}

	pod := kinds["Deployment"].(*apps.Deployment).Spec.Template.Spec
	serving := pod.Containers[0]
	ports := map[string]int32{}
	for _, port := range serving.Ports {
		ports[port.Name] = port.ContainerPort
	}
	is.Equal(ports, map[string]int32{"http": 8080, "internal": 9080}) // as in the image
	for _, probe := range []*core.Probe{serving.StartupProbe, serving.ReadinessProbe, serving.LivenessProbe} {
		is.True(ports[probe.HTTPGet.Port.StrVal] != 0)
	}
	is.Equal(kinds["Service"].(*core.Service).Spec.Ports[0].TargetPort.StrVal, "http") // clients do not reach the other
	for _, container := range append(pod.Containers, kinds["Job"].(*batch.Job).Spec.Template.Spec.Containers...) {
		is.True(!*container.SecurityContext.AllowPrivilegeEscalation)
		is.True(*container.SecurityContext.ReadOnlyRootFilesystem)
	}

	for _, variable := range serving.Env {
		t.Setenv(variable.Name, variable.Value)
	}
	longest := servedWith(t, "--database=postgres://").ShutdownTime()
	is.True(time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second >= longest+longest/16)
}

// TestImage builds the image the way the Dockerfile says. What is in it is the
// program, static, and its certificates.
func TestImage(t *testing.T) {
	is := is.New(t)
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("buildah was not found (Debian: apt-get install buildah)")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: what buildah needs to work without is different from machine to machine")
	}
	dir := t.TempDir()
	is.NoErr(os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(deployed(t, "image/Dockerfile")), 0o600))
	is.NoErr(os.WriteFile(filepath.Join(dir, "ca-certificates.crt"), nil, 0o644))
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(dir, "botapi"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	kept := t.TempDir()
	store := []string{"--root", filepath.Join(kept, "root"), "--runroot", filepath.Join(kept, "run"), "--storage-driver", "vfs"}
	buildah := func(args ...string) string {
		return strings.TrimSpace(runProgram(t, "buildah", "buildah", append(slices.Clone(store), args...)...))
	}
	buildah("build", "--isolation", "chroot", "-t", "botapi", dir)
	var image struct {
		OCIv1 struct {
			Config struct{ User string }
		}
	}
	is.NoErr(json.Unmarshal([]byte(buildah("inspect", "--type", "image", "botapi")), &image))
	is.Equal(image.OCIv1.Config.User, "65532:65532")

	container := buildah("from", "botapi")
	is.True(strings.Contains(buildah("run", "--isolation", "chroot", container, "/botapi", "--help"), "Serve bots"))
}

// TestRulesAndDashboard lets promtool read everything that is asked of
// Prometheus, and looks whether replicas have the metrics that it names.
func TestRulesAndDashboard(t *testing.T) {
	is := is.New(t)
	runProgram(t, "prometheus", "promtool", "check", "rules", deploy+"prometheus/alerts.yaml")
	runProgram(t, "prometheus", "promtool", "test", "rules", deploy+"prometheus/alerts_test.yaml")
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	is.NoErr(json.Unmarshal([]byte(deployed(t, "grafana/dashboard.json")), &dashboard))
	var queries bytes.Buffer
	queries.WriteString("groups: [{name: dashboard, rules: [")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			fmt.Fprintf(&queries, "{record: 'a%d', expr: %q},\n", queries.Len(), strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
		}
	}
	queries.WriteString("]}]\n")
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	is.NoErr(os.WriteFile(file, queries.Bytes(), 0o600))
	runProgram(t, "prometheus", "promtool", "check", "rules", file)

	exist := metricsOfABusyReplica(t)
	named := regexp.MustCompile(`\b(?:botapi|go|process|http_server|gen_ai_client)_[a-z_]+\b`)
	for _, metric := range named.FindAllString(deployed(t, "prometheus/alerts.yaml")+queries.String(), -1) {
		if !strings.Contains(exist, "\n"+metric+"{") && !strings.Contains(exist, "\n"+metric+" ") {
			t.Errorf("no replica has %s", metric)
		}
	}
}

// metricsOfABusyReplica is what a replica measures that has had a chat, and has
// refused a request.
func metricsOfABusyReplica(t *testing.T) string {
	env, key := withOneBot(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Text("Hello")
		s.Stop()
		s.Usage(9, 7)
		s.Done()
	})
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", redistest.NewServer(t).URL)
	p.ready(t)
	if status, answer := ask(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", false)); status != http.StatusOK {
		t.Fatal(answer)
	}
	ask(t, "guessed", "GET", p.url+"/v1/bots", "")
	eventually(t, "the refusal is measured", func() bool { return len(refusalsOf(t, p)) == 1 })
	return scrapeMeasured(t, p)
}

// TestProxyTerminatesTLS puts a certificate into the proxy's configuration the
// way that its first lines say, and streams over HTTP/2.
func TestProxyTerminatesTLS(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("Hello", " yourself") })
	p := serve(t, env, "--runtime", "local="+runtime.URL)
	p.ready(t)
	file, roots := certificate(t)
	proxy := startProxyAt(t, " ssl crt "+file+" alpn h2,http/1.1", []*process{p, p, p})

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	url := strings.Replace(proxy.url, "http://", "https://", 1)
	response, err := request(t.Context(), client, key, "POST", url+"/v1/chat", `{"bot_slug":"helper","prompt":"Hi","stream":true}`)
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.Proto, "HTTP/2.0")
	answer, err := io.ReadAll(response.Body)
	is.NoErr(err)
	is.True(strings.HasSuffix(string(answer), "data: [DONE]\n\n"))
}

// certificate makes one for 127.0.0.1, in a file with its key as HAProxy wants.
func certificate(t *testing.T) (file string, roots *x509.CertPool) {
	t.Helper()
	is := is.New(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	is.NoErr(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	is.NoErr(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	is.NoErr(err)
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
	file = filepath.Join(t.TempDir(), "cert.pem")
	is.NoErr(os.WriteFile(file, append(own, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...), 0o600))
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(own)
	return file, roots
}
