//! The rpcs of the two services, as tables. Macros generate from them the server, the client, the conversion
//! of requests and their `Debug`, the capabilities that a plugin declares, and the tests of all these.
//!
//! GetMachineStatus and ListMachines are not here. Each is an rpc of both services, and the client chooses.

/// Passes a row for each rpc of `cmi.v1.Machine` to the macro `$callback`, after `$arguments`:
///
/// * the driver's request,
/// * the method, its message, and the fields of the driver's request in this message; without fields,
///   `convert` implements the conversion by hand,
/// * the response, and how it is written: `plain`, `with_trailers`, or `empty` for a response without fields,
/// * the declaration in the capabilities of the service.
#[macro_export]
macro_rules! machine_rpcs {
    ($callback:ident [$($arguments:tt)*]) => {
        $callback! { [$($arguments)*]
            CreateMachineRequest: create_machine(CreateMachineRequest { machine, last_known_state })
                -> CreateMachineResponse, with_trailers, CreateMachine;
            DeleteMachineRequest:
                delete_machine(DeleteMachineRequest { machine, provider_id, last_known_state })
                -> DeleteMachineResponse, plain, DeleteMachine;
            ShutDownMachineRequest:
                shut_down_machine(ShutDownMachineRequest { machine, provider_id, last_known_state })
                -> ShutDownMachineResponse, plain, ShutdownMachine;
            GetVolumeIdsRequest: get_volume_i_ds(GetVolumeIDsRequest)
                -> GetVolumeIDsResponse, plain, GetVolumeIds;
        }
    };
}

/// Hands the rpcs of `capcmi.v1.MachineExtension` to `$callback`, in rows as those of [`machine_rpcs!`].
#[macro_export]
macro_rules! extension_rpcs {
    ($callback:ident [$($arguments:tt)*]) => {
        $callback! { [$($arguments)*]
            InitializeMachineRequest:
                initialize_machine(InitializeMachineRequest { machine, provider_id, last_known_state })
                -> Machine, plain, InitializeMachine;
            UpdateMachineRequest:
                update_machine(UpdateMachineRequest {
                    machine, provider_id, last_applied_provider_spec, last_known_state
                })
                -> UpdateMachineResponse, empty, UpdateMachine;
            GenerateMachineClassForMigrationRequest:
                generate_machine_class_for_migration(GenerateMachineClassForMigrationRequest)
                -> GenerateMachineClassForMigrationResponse, plain, GenerateMachineClassForMigration;
            ListZonesRequest: list_zones(ListZonesRequest { class })
                -> ListZonesResponse, plain, ListZones;
            DescribeClassRequest: describe_class(DescribeClassRequest { class })
                -> DescribeClassResponse, plain, DescribeClass;
            RestartMachineRequest:
                restart_machine(RestartMachineRequest { machine, provider_id, last_known_state })
                -> RestartMachineResponse, empty, RestartMachine;
            GetConsoleRequest: get_console(GetConsoleRequest { machine, provider_id })
                -> GetConsoleResponse, plain, GetConsole;
        }
    };
}
