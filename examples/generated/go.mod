module example.com/botapi/examples/generated

go 1.26.0

require (
	example.com/botapi v0.0.0
	github.com/getkin/kin-openapi v0.153.0
	github.com/matryer/is v1.4.1
)

require (
	github.com/go-openapi/jsonpointer v0.22.5 // indirect
	github.com/go-openapi/swag/jsonname v0.25.5 // indirect
	github.com/gorilla/mux v1.8.0 // indirect
	github.com/invopop/validation v0.8.0 // indirect
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/text v0.14.0 // indirect
)

replace example.com/botapi => ../..
