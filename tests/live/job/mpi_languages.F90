! Collectives from Fortran, by mpif.h (FORM 1), `use mpi` (2) or `use mpi_f08` (3); results are checked.
program languages
#if FORM == 2
  use mpi
#elif FORM == 3
  use mpi_f08
#endif
  implicit none
#if FORM == 1
  include 'mpif.h'
#endif
#if FORM == 3
  type(MPI_Comm) :: half
  type(MPI_Request) :: request
#else
  integer :: half, request
#endif
  integer, parameter :: n = 512
  integer :: rank, ranks, ierr, i, wrong = 0
  integer :: counts(4) = [3, 5, 0, 4], places(4) = [0, 3, 8, 8]
  real :: a(4 * n), b(4 * n), total
  double precision :: d(n)
  integer :: k(n)
  complex :: c(n)

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  total = real(ranks * (ranks + 1) / 2)
  a = real(rank + 1)
  b = 0
  call MPI_Allreduce(a, b, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, ierr)
  call check(all(b(:n) == total), 1)
  b = a
  call MPI_Allreduce(MPI_IN_PLACE, b, n, MPI_REAL, MPI_MAX, MPI_COMM_WORLD, ierr)
  call check(all(b(:n) == real(ranks)), 2)
  d = dble(rank + 1)
  call MPI_Allreduce(MPI_IN_PLACE, d, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
  call check(all(d == dble(total)), 3)
  k = rank + 1
  call MPI_Allreduce(MPI_IN_PLACE, k, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
  call check(all(k == int(total)), 4)
  c = cmplx(rank + 1, -rank - 1)
  call MPI_Allreduce(MPI_IN_PLACE, c, n, MPI_COMPLEX, MPI_SUM, MPI_COMM_WORLD, ierr)
  call check(all(c == cmplx(total, -total)), 5)
  b = real(rank)
  call MPI_Bcast(b, n, MPI_REAL, 1, MPI_COMM_WORLD, ierr)
  call check(all(b(:n) == 1.0), 6)
  b = 0
  call MPI_Reduce(a, b, n, MPI_REAL, MPI_SUM, 1, MPI_COMM_WORLD, ierr)
  if (rank == 1) call check(all(b(:n) == total), 7)
  call MPI_Allgather(a, n, MPI_REAL, b, n, MPI_REAL, MPI_COMM_WORLD, ierr)
  call check(all([(b((i - 1) * n + 1) == real(i), i = 1, ranks)]), 8)
  call MPI_Alltoall(a, n, MPI_REAL, b, n, MPI_REAL, MPI_COMM_WORLD, ierr)
  call check(all([(b(i * n) == real(i), i = 1, ranks)]), 9)
  call MPI_Reduce_scatter_block(a, b, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, ierr)
  call check(all(b(:n) == total), 10)
  b = 0
  call MPI_Allgatherv(a, counts(rank + 1), MPI_REAL, b, counts, places, MPI_REAL, MPI_COMM_WORLD, ierr)
  call check(all(b(1:3) == 1.0) .and. all(b(4:8) == 2.0) .and. all(b(9:12) == 4.0) .and. b(13) == 0.0, 11)
  b = 0
  call MPI_Reduce_scatter(a, b, counts, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, ierr)
  call check(all(b(:counts(rank + 1)) == total), 12)
  b = 0
  call MPI_Alltoallv(a, [2, 2, 2, 2] + rank, [0, 8, 16, 24], MPI_REAL, b, [2, 3, 4, 5], [0, 2, 5, 9], MPI_REAL, &
                     MPI_COMM_WORLD, ierr)
  call check(all(b(1:2) == 1.0) .and. all(b(3:5) == 2.0) .and. all(b(6:9) == 3.0) .and. all(b(10:14) == 4.0), 13)
#ifdef PENDING
  call MPI_Iallreduce(a, b, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, request, ierr)
  call MPI_Wait(request, MPI_STATUS_IGNORE, ierr)
  call check(all(b(:n) == total), 14)
  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, ierr)
  call MPI_Allreduce(a, b, n, MPI_REAL, MPI_SUM, half, ierr)
  call check(all(b(:n) == merge(4.0, 6.0, mod(rank, 2) == 0)), 15)
  call MPI_Comm_free(half, ierr)
#endif
  i = wrong
  call MPI_Allreduce(i, wrong, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierr)
  call MPI_Finalize(ierr)
  if (wrong /= 0) stop 1
contains
  subroutine check(holds, number)
    logical, intent(in) :: holds
    integer, intent(in) :: number
    if (holds) return
    wrong = number
    print *, 'rank', rank, ': check', number, 'is wrong'
  end subroutine
end program
