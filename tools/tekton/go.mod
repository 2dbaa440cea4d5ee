module tarbet.dev/tools/tekton

go 1.24.0

tool (
	github.com/tektoncd/pipeline/cmd/controller
	github.com/tektoncd/pipeline/cmd/entrypoint
	github.com/tektoncd/pipeline/cmd/nop
	github.com/tektoncd/pipeline/cmd/resolvers
	github.com/tektoncd/pipeline/cmd/workingdirinit
)

require github.com/tektoncd/pipeline v1.0.0
