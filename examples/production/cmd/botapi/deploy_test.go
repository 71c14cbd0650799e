package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/redistest"
	"example.com/botapi/examples/production/internal/service"
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

// runProgram runs a program, or skips the test if it is not installed.
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

// TestUnits has systemd check the units, with their program installed.
func TestUnits(t *testing.T) {
	is := is.New(t)
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, name := range []string{"botapi.service", "botapi-usage-delete.service", "botapi-usage-delete.timer"} {
		file := filepath.Join(dir, name)
		is.NoErr(os.WriteFile(file, []byte(strings.Replace(deployed(t, name), "/usr/local/bin/botapi", binary, 1)), 0o600))
		args = append(args, file)
	}
	is.Equal(runProgram(t, "systemd", "systemd-analyze", args...), "") // it reports no problem

	for _, name := range []string{"botapi.service", "botapi-usage-delete.service"} {
		unit := deployed(t, name)
		is.True(strings.Contains(unit, "AF_UNIX")) // the socket of PostgreSQL
		_, ours, _ := strings.Cut(unit, "\nUser=botapi\n")
		ours, _, _ = strings.Cut(ours, "\n[Install]")
		_, replicas, _ := strings.Cut(deployed(t, "botapi.service"), "\nUser=botapi\n")
		is.True(strings.HasPrefix(replicas, strings.TrimSpace(ours))) // both have the same restrictions
	}
}

// objects are the objects of the manifest, by kind and name. A field that its
// type does not have is an error.
func objects(t *testing.T) map[string]any {
	t.Helper()
	is := is.New(t)
	found := make(map[string]any)
	for document := range strings.SplitSeq(deployed(t, "kubernetes.yaml"), "\n---\n") {
		var header struct {
			Kind     string
			Metadata struct{ Name string }
		}
		is.NoErr(yaml.Unmarshal([]byte(document), &header))
		object := map[string]any{
			"Job": new(batch.Job), "CronJob": new(batch.CronJob), "Deployment": new(apps.Deployment), "Service": new(core.Service),
			"PodDisruptionBudget": new(policy.PodDisruptionBudget), "NetworkPolicy": new(networking.NetworkPolicy),
		}[header.Kind]
		is.True(object != nil)
		is.NoErr(yaml.UnmarshalStrict([]byte(document), object))
		found[header.Kind+" "+header.Metadata.Name] = object
	}
	return found
}

// TestManifest checks that the parts of the manifest fit each other.
func TestManifest(t *testing.T) {
	is := is.New(t)
	objects := objects(t)
	replica := objects["Deployment botapi"].(*apps.Deployment).Spec.Template
	redis := objects["Deployment botapi-redis"].(*apps.Deployment).Spec.Template
	migration := objects["Job botapi-migrate-1"].(*batch.Job).Spec.Template
	deletion := objects["CronJob botapi-usage-delete"].(*batch.CronJob).Spec.JobTemplate.Spec.Template
	for _, pod := range []core.PodTemplateSpec{replica, redis, migration, deletion} {
		is.True(*pod.Spec.SecurityContext.RunAsNonRoot)
		for _, container := range pod.Spec.Containers {
			is.True(!*container.SecurityContext.AllowPrivilegeEscalation)
			is.True(*container.SecurityContext.ReadOnlyRootFilesystem)
		}
	}

	serving := replica.Spec.Containers[0]
	ports := make(map[string]int32)
	for _, port := range serving.Ports {
		ports[port.Name] = port.ContainerPort
	}
	is.Equal(ports, map[string]int32{"http": 8080, "internal": 9080}) // as in the image
	for _, probe := range []*core.Probe{serving.StartupProbe, serving.ReadinessProbe, serving.LivenessProbe} {
		is.True(ports[probe.HTTPGet.Port.StrVal] != 0)
	}
	is.Equal(objects["Service botapi"].(*core.Service).Spec.Ports[0].TargetPort.StrVal, "http") // clients do not reach the other port

	// HAProxy's checks may reach the internal port, and replicas may reach their
	// Redis; clients may reach neither.
	internal := objects["NetworkPolicy botapi"].(*networking.NetworkPolicy).Spec.Ingress[1]
	is.Equal(internal.Ports[0].Port.StrVal, "internal")
	is.Equal(internal.From[1].PodSelector.MatchLabels, map[string]string{"app": "haproxy"})
	toRedis := objects["NetworkPolicy botapi-redis"].(*networking.NetworkPolicy).Spec
	is.Equal(toRedis.PodSelector.MatchLabels, redis.Labels)
	is.Equal(len(toRedis.Ingress), 1)
	is.Equal(len(toRedis.Ingress[0].From), 1)
	is.Equal(toRedis.Ingress[0].From[0].PodSelector.MatchLabels, replica.Labels)

	for _, variable := range serving.Env {
		t.Setenv(variable.Name, variable.Value)
	}
	served := servedWith(t, "--database=postgres://")
	served.Shared = new(service.Shared)
	longest, grace := served.ShutdownTime(), *replica.Spec.TerminationGracePeriodSeconds
	is.True(time.Duration(grace)*time.Second >= longest+longest/16)
	is.True(strings.Contains(deployed(t, "kubernetes.yaml"), fmt.Sprintf(" %d s, as terminationGracePeriodSeconds.", grace)))
}

// TestMemoryLimits checks that the manifest and the unit give a replica memory for
// as many chats as it admits, and let it collect garbage before it is killed.
func TestMemoryLimits(t *testing.T) {
	is := is.New(t)
	const ofChat, besides = 0.6, 110 // MiB, see BenchmarkMemory; and the log and the usage that wait
	needed := besides + ofChat*float64(servedWith(t, "--database=postgres://", "--runtime=local=http://127.0.0.1:1").MaxChats)

	container := objects(t)["Deployment botapi"].(*apps.Deployment).Spec.Template.Spec.Containers[0]
	var limit string
	for _, variable := range container.Env {
		if variable.Name == "GOMEMLIMIT" {
			limit = variable.Value
		}
	}
	_, ofUnit, _ := strings.Cut(deployed(t, "botapi.service"), "Environment=GOMEMLIMIT=")
	is.True(strings.HasPrefix(ofUnit, limit+"\n"))
	var mebibytes float64
	_, err := fmt.Sscanf(limit, "%fMiB", &mebibytes)
	is.NoErr(err)
	is.True(needed <= 0.8*mebibytes) // BotapiMemoryNearLimit does not fire
	is.True(strings.Contains(deployed(t, "botapi.service"), "\nMemoryMax=2G\n"))
	is.Equal(container.Resources.Limits.Memory().String(), "2Gi")
	is.True(mebibytes <= 0.9*2048)
}

// TestRedisOfTheManifest starts Redis with the arguments of the manifest, and a
// replica with its address.
func TestRedisOfTheManifest(t *testing.T) {
	is := is.New(t)
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server was not found (Debian: apt-get install redis-server)")
	}
	objects := objects(t)
	container := objects["Deployment botapi-redis"].(*apps.Deployment).Spec.Template.Spec.Containers[0]
	port := postgrestest.FreePort(t)
	args := slices.Concat(container.Args[1:], []string{"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", t.TempDir()})
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "$(REDIS_PASSWORD)", "secret")
	}
	redis := exec.Command(container.Args[0], args...)
	is.NoErr(redis.Start())
	defer func() {
		redis.Process.Kill()
		redis.Wait()
	}()

	service := objects["Service botapi-redis"].(*core.Service)
	var url string
	for _, variable := range objects["Deployment botapi"].(*apps.Deployment).Spec.Template.Spec.Containers[0].Env {
		if variable.Name == "BOTAPI_REDIS" {
			url = strings.NewReplacer("$(REDIS_PASSWORD)", "secret",
				fmt.Sprintf("%s:%d", service.Name, service.Spec.Ports[0].Port), fmt.Sprintf("127.0.0.1:%d", port)).Replace(variable.Value)
		}
	}
	env, _ := withOneBot(t)
	p := serve(t, env, "--runtime", nowhere, "--redis", url)
	eventually(t, "it reaches Redis", func() bool { return p.measures(t, `botapi_redis_reachable\{.*\} 1$`) })
	is.True(!strings.Contains(p.log.String(), "secret"))
}

// TestImage builds the image as the Dockerfile says. It contains only the static
// program and certificates.
func TestImage(t *testing.T) {
	is := is.New(t)
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("buildah was not found (Debian: apt-get install buildah)")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: what buildah needs without root differs from machine to machine")
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

// TestRunbook checks that the runbook has a paragraph for each alert and no
// others.
func TestRunbook(t *testing.T) {
	is := is.New(t)
	var alerts, paragraphs []string
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(deployed(t, "prometheus/alerts.yaml"), -1) {
		alerts = append(alerts, alert[1])
	}
	for _, heading := range regexp.MustCompile(`(?m)^## (\w+)\n\n\S`).FindAllStringSubmatch(documents(t)["docs/runbook.md"], -1) {
		paragraphs = append(paragraphs, heading[1])
	}
	is.True(len(alerts) > 0)
	is.Equal(paragraphs, alerts)
}

// TestRulesAndDashboard has promtool check all queries, and checks that replicas
// have the metrics that they name.
func TestRulesAndDashboard(t *testing.T) {
	is := is.New(t)
	runProgram(t, "prometheus", "promtool", "check", "rules", deploy+"prometheus/alerts.yaml")
	runProgram(t, "prometheus", "promtool", "test", "rules", deploy+"prometheus/alerts_test.yaml")
	var dashboard struct {
		Panels []struct {
			ID      int
			Targets []struct{ Expr string }
		}
	}
	is.NoErr(json.Unmarshal([]byte(deployed(t, "grafana/dashboard.json")), &dashboard))
	var queries bytes.Buffer
	queries.WriteString("groups: [{name: dashboard, rules: [")
	for i, panel := range dashboard.Panels {
		is.Equal(panel.ID, i+1) // Grafana shows only one of two panels with the same number
		for _, target := range panel.Targets {
			fmt.Fprintf(&queries, "{record: 'a%d', expr: %q},\n", queries.Len(), strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
		}
	}
	queries.WriteString("]}]\n")
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	is.NoErr(os.WriteFile(file, queries.Bytes(), 0o600))
	runProgram(t, "prometheus", "promtool", "check", "rules", file)

	exist := metricsOfABusyReplica(t)
	named := regexp.MustCompile(`\b(?:botapi|go|process|http_server|gen_ai_client|db_client)_[a-z_]+\b`)
	for _, metric := range named.FindAllString(deployed(t, "prometheus/alerts.yaml")+queries.String(), -1) {
		if !strings.Contains(exist, "\n"+metric+"{") && !strings.Contains(exist, "\n"+metric+" ") {
			t.Errorf("no replica has %s", metric)
		}
	}
}

// metricsOfABusyReplica are the metrics of a replica that has had a chat with an
// Idempotency-Key, and has rejected a request.
func metricsOfABusyReplica(t *testing.T) string {
	env, key := withOneBot(t)
	runtime := saysCounted(t, "Hello")
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", redistest.NewServer(t).URL, "--answers")
	askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true), "Idempotency-Key", "k1")
	ask(t, "guessed", "GET", p.url+"/v1/bots", "")
	eventually(t, "the rejection is measured", func() bool { return len(errorsOf(t, p)) == 1 })
	return scrapeMeasured(t, p)
}

// certificate makes a certificate for 127.0.0.1, in a file with its key as
// HAProxy expects it.
func certificate(t *testing.T) (file string) {
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
	return file
}
