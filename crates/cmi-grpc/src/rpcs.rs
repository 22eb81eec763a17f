//! The rpcs of the two services, for server and client alike: of each the driver's request, the method and
//! the messages of `proto/`, and how a response is written, `plain` or `with_trailers`.
//!
//! GetMachineStatus and ListMachines are not here. Each is an rpc of both services, and the client chooses.

/// Hands the rpcs of `cmi.v1.Machine` to `$callback`, behind `$arguments`.
macro_rules! machine_rpcs {
    ($callback:ident [$($arguments:tt)*]) => {
        $callback! { [$($arguments)*]
            CreateMachineRequest:
                create_machine(CreateMachineRequest) -> CreateMachineResponse, with_trailers;
            DeleteMachineRequest: delete_machine(DeleteMachineRequest) -> DeleteMachineResponse, plain;
            ShutDownMachineRequest:
                shut_down_machine(ShutDownMachineRequest) -> ShutDownMachineResponse, plain;
            GetVolumeIdsRequest: get_volume_i_ds(GetVolumeIDsRequest) -> GetVolumeIDsResponse, plain;
        }
    };
}
pub(crate) use machine_rpcs;

/// Hands the rpcs of `capcmi.v1.MachineExtension` to `$callback`, behind `$arguments`.
macro_rules! extension_rpcs {
    ($callback:ident [$($arguments:tt)*]) => {
        $callback! { [$($arguments)*]
            InitializeMachineRequest: initialize_machine(InitializeMachineRequest) -> Machine, plain;
            UpdateMachineRequest: update_machine(UpdateMachineRequest) -> UpdateMachineResponse, plain;
            GenerateMachineClassForMigrationRequest: generate_machine_class_for_migration(
                GenerateMachineClassForMigrationRequest
            ) -> GenerateMachineClassForMigrationResponse, plain;
            ListZonesRequest: list_zones(ListZonesRequest) -> ListZonesResponse, plain;
            DescribeClassRequest: describe_class(DescribeClassRequest) -> DescribeClassResponse, plain;
            RestartMachineRequest: restart_machine(RestartMachineRequest) -> RestartMachineResponse, plain;
        }
    };
}
pub(crate) use extension_rpcs;
