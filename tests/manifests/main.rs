//! What is installed and documented: the generated files, the kustomization, the clusterctl repository, and
//! what a real API server makes of definitions, permissions and policies.

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
