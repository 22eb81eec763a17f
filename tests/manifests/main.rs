//! Checks of the installation and documentation: generated files, the kustomization, and the clusterctl
//! repository. A real API server checks definitions, permissions and policies.

mod admission;
mod agreement;
mod alerts;
mod api_server;
mod clusterctl;
mod committed;
mod compliance;
mod components;
mod documentation;
mod endpoint;
mod helm;
mod kustomize;
mod limits;
mod objects;
mod policies;
mod release;
mod samples;
mod schema;
mod topology;
