package main

import (
	"flag"

	"github.com/tektoncd/pipeline/pkg/apis/pipeline"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	resolution "github.com/tektoncd/pipeline/pkg/apis/resolution/v1alpha1"
	"github.com/tektoncd/pipeline/pkg/reconciler/pipelinerun"
	"github.com/tektoncd/pipeline/pkg/reconciler/resolutionrequest"
	"github.com/tektoncd/pipeline/pkg/reconciler/taskrun"
	"github.com/tektoncd/pipeline/pkg/remoteresolution/resolver/bundle"
	"github.com/tektoncd/pipeline/pkg/remoteresolution/resolver/cluster"
	"github.com/tektoncd/pipeline/pkg/remoteresolution/resolver/framework"
	"github.com/tektoncd/pipeline/pkg/remoteresolution/resolver/git"
	"github.com/tektoncd/pipeline/pkg/remoteresolution/resolver/http"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	filtered "knative.dev/pkg/client/injection/kube/informers/factory/filtered"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/injection/sharedmain"
	"knative.dev/pkg/signals"
)

// The images only have to be there: the node finds their programs in /ko-app.
const image = "tarbet.dev/tekton:v1.0.0"

func restConfig() *rest.Config {
	config := injection.ParseAndGetRESTConfigOrDie()
	// A test wants its pods at once.
	config.QPS, config.Burst = 500, 1000
	return config
}

func controllers() {
	options := &pipeline.Options{Images: pipeline.Images{
		EntrypointImage:        image,
		SidecarLogResultsImage: image,
		NopImage:               image,
		ShellImage:             image,
		ShellImageWin:          image,
		WorkingDirInitImage:    image,
	}}
	flag.IntVar(&controller.DefaultThreadsPerController, "threads-per-controller", 8, "reconciles at once")
	config := restConfig()
	ctx := sharedmain.WithHADisabled(signals.NewContext())
	ctx = filtered.WithSelectors(ctx, tekton.ManagedByLabelKey)
	ctx = controller.WithResyncPeriod(ctx, controller.DefaultResyncPeriod)
	sharedmain.MainWithConfig(ctx, "tekton-pipelines-controller", config,
		taskrun.NewController(options, clock.RealClock{}),
		pipelinerun.NewController(options, clock.RealClock{}),
		resolutionrequest.NewController(clock.RealClock{}),
	)
}

func resolvers() {
	config := restConfig()
	ctx := sharedmain.WithHADisabled(signals.NewContext())
	ctx = filtered.WithSelectors(ctx, resolution.ManagedByLabelKey)
	sharedmain.MainWithConfig(ctx, "controller", config,
		framework.NewController(ctx, &git.Resolver{}),
		framework.NewController(ctx, &bundle.Resolver{}),
		framework.NewController(ctx, &cluster.Resolver{}),
		framework.NewController(ctx, &http.Resolver{}),
	)
}
